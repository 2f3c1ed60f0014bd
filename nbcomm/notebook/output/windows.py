"""What the ranks have in their windows: the first pieces of each lane, which are searched for what others show."""

from __future__ import annotations

from collections.abc import Sequence

from ..display.items import Line, Piece
from .lanes import RankLane, key_of


class Windows:
    """The windows of all lanes. They are searched when somebody asks, and then kept right, piece by piece.

    Args:
        lanes: the ranks'.
        size: how many pieces of each are searched.
    """

    def __init__(self, lanes: Sequence[RankLane], size: int) -> None:
        self._lanes = lanes
        self._size = size
        self._searched = False
        self._within: dict[Piece, int] = {}  # ranks (as bits) that have the piece in their window
        self._heads: dict[Piece, int] = {}  # ranks that have it as their head

    def with_head(self, lane: RankLane) -> tuple[int, int]:
        """Return the ranks whose head is this lane's, and those that have it anywhere in their window; as bits."""
        if not self._searched:
            self._searched = True
            for each in self._lanes:
                self._fill(each)
        head = lane.keys[0]
        return self._heads[head], self._within[head]

    def forget(self) -> None:
        """Search again when somebody asks: much has changed."""
        if self._searched:
            self._searched = False
            self._within.clear()
            self._heads.clear()
            for lane in self._lanes:
                lane.keys.clear()
                lane.counts.clear()

    def add(self, lane: RankLane) -> None:
        """Note what the lane has got, as far as its window has room."""
        if self._searched and len(lane.keys) < self._size:
            self._fill(lane)

    def step(self, lane: RankLane) -> None:
        """Note that the lane's head is out."""
        if not self._searched:
            return
        keys, counts, bit = lane.keys, lane.counts, lane.bit
        key = keys.popleft()
        _unset(self._heads, key, bit)
        left = counts[key] - 1
        if left:
            counts[key] = left
        else:
            del counts[key]
            _unset(self._within, key, bit)
        if keys:
            self._heads[keys[0]] = self._heads.get(keys[0], 0) | bit
        if len(lane) > len(keys):
            self._fill(lane)

    def _fill(self, lane: RankLane) -> None:
        keys, counts, within, bit = lane.keys, lane.counts, self._within, lane.bit
        for piece in lane.first(self._size, len(keys)):
            key = piece if type(piece) is Line and " at 0x" not in piece.text else key_of(piece)
            keys.append(key)
            if len(keys) == 1:
                self._heads[key] = self._heads.get(key, 0) | bit
            seen = counts.get(key, 0)
            counts[key] = seen + 1
            if not seen:
                within[key] = within.get(key, 0) | bit


def _unset(bits: dict[Piece, int], piece: Piece, bit: int) -> None:
    left = bits[piece] & ~bit
    if left:
        bits[piece] = left
    else:
        del bits[piece]
