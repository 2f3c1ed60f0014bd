"""A cell's value, in a kernel that separates it from what the cell prints: Jupyter's ``execute_result``.

A value on which all ranks of the cell agree is the cell's. An area that has a method ``result`` takes it. Values on
which ranks differ are shown as text, as all of them are in an ordinary kernel, whose areas have no such method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, cast

from ...protocol import Item, Result
from ..display.area import Area, current_area
from ..display.items import FoldedItem, Line, Piece, Rich
from ..display.screen import Screen
from .lanes import key_of


class ResultArea(Area, Protocol):
    """An area that has a place for the cell's value."""

    def result(self, data: dict[str, Any], metadata: dict[str, Any]) -> None:
        """Show the value of the cell, a MIME bundle."""


# ── which area ──────────────────────────────────────────────────────────────────────────────────────

_place: ContextVar[Callable[[Area], Area] | None] = ContextVar("nbcomm_place", default=None)
"""Each context has its own, and Python wants the variable at the top of a module: an object's is never freed."""


@contextmanager
def placing(place: Callable[[Area], Area]) -> Iterator[None]:
    """Show cells that this context runs on ranks in the area that ``place`` returns for their usual area."""
    token = _place.set(place)
    try:
        yield
    finally:
        _place.reset(token)


def cell_area() -> Area:
    """Return the area of the cell that runs now; must be called on the thread that runs it."""
    area, place = current_area(), _place.get()
    return area if place is None else place(area)


# ── which value ─────────────────────────────────────────────────────────────────────────────────────


class TextValue(Line):
    """A rank's value that is text only. It folds as any other line does."""

    __slots__ = ()


class RichValue(Rich):
    """A rank's value that is more than text."""

    __slots__ = ()


class Values:
    """The values of one cell.

    Args:
        ranks: the ranks that run the cell.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        self._ranks = tuple(sorted(ranks))
        self._texts: dict[Piece, set[int]] = {}

    def marked(self, rank: int, item: Item, piece: Piece) -> Piece:
        """Return an item's piece, as a value if it is one. Views of widgets are not: ranks' widgets share a display."""
        if not isinstance(item, Result):
            return piece
        if isinstance(piece, Line):
            self._texts.setdefault(key_of(piece), set()).add(rank)
            return TextValue(*piece)
        return RichValue(piece.first) if type(piece) is Rich else piece

    def are_all(self, entry: FoldedItem) -> bool:
        """Return whether all ranks gave this as their value, all early enough to be shown together."""
        if entry.forced or entry.ranks != self._ranks:
            return False
        if isinstance(entry.piece, TextValue):  # of one rank; others may have printed that text
            return len(self._texts[key_of(entry.piece)]) == len(self._ranks)
        return bool(entry.parts) and all(isinstance(part, RichValue) for part in entry.parts.values())


# ── where in the cell ───────────────────────────────────────────────────────────────────────────────


class ResultScreen(Screen):
    """A screen that shows the cell's value as such, if its area can.

    Attributes:
        has_results: whether it can. Such a front end gets each ``clear_output``, too, as in any kernel: also if there
            is no output of the ranks to be cleared.
    """

    def __init__(self, area: Area, clock: Callable[[], float]) -> None:
        super().__init__(area, clock)
        self.has_results = callable(getattr(area, "result", None))
        self._clean = False  # whether the front end was told to clear since it was last shown something

    def result(self, data: dict[str, Any], metadata: dict[str, Any]) -> None:
        """Show the cell's value after all that is settled."""
        self.freeze()
        self.flush()
        self._ready()
        cast("ResultArea", self.area).result(data, metadata)

    def clear(self, *, wait: bool) -> None:
        """Remove everything; with ``wait``, when the next output comes."""
        used = self._used
        super().clear(wait=wait)
        if used:
            self._clean |= not wait
        else:
            self.clear_nothing(wait=wait)

    def clear_nothing(self, *, wait: bool) -> None:
        """Clear for ranks that have shown nothing: if no rank has shown anything, tell the front end, once for all."""
        if self.has_results and not (self._used or self._unsent or self._clean):
            self._clean = True
            self.area.clear(wait=wait)

    def _ready(self) -> None:
        self._clean = False
        super()._ready()
