"""What each rank has shown since it last cleared its output, as long as that may be taken back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..display.items import Line, Piece, size_of
from .lanes import RankLane

_REMEMBERED = 2000
"""The most pieces already shown that can be taken back when some of the ranks clear their output."""

_REMEMBERED_LETTERS = 16 << 20
"""The most characters of them: what is shown stays in memory for that."""


class History:
    """The room for what is remembered of all lanes."""

    def __init__(self) -> None:
        self._pieces, self._letters = _REMEMBERED, _REMEMBERED_LETTERS

    @property
    def _has_room(self) -> bool:
        return self._pieces > 0 and self._letters > 0

    def note(self, lane: RankLane, piece: Piece) -> None:
        """Remember a piece that is out, if there is room."""
        if self._has_room:
            self._pieces -= 1
            self._letters -= size_of(piece)
            lane.history.append(piece)
        else:
            lane.forgot = True

    def note_many(self, lanes: Mapping[int, RankLane], lines: Iterable[tuple[tuple[int, ...], Line]]) -> None:
        """Remember lines that are out, each of some ranks.

        Args:
            lanes: those ranks' lanes; each has at least one of the lines.
            lines: the lines.
        """
        if self._has_room:
            for ranks, line in lines:
                for rank in ranks:
                    self.note(lanes[rank], line)
                if not self._has_room and all(lane.forgot for lane in lanes.values()):
                    return
        else:
            for lane in lanes.values():
                lane.forgot = True

    def drop(self, lanes: Sequence[RankLane]) -> None:
        """Forget what these lanes have shown: there is room for as much."""
        for lane in lanes:
            self._pieces += len(lane.history)
            self._letters += sum(map(size_of, lane.history))
            lane.history = []
            lane.forgot = False
