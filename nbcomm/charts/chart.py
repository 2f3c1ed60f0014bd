"""The base of all charts: a title, a body, notes below it, and the same in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

from ..pictures.elements import PAD, Elements, page_wide
from ..pictures.picture import Shown

TOP, ROW = 56, 30
"""Pixels above the body of a chart, and of a row's height."""


@dataclass(eq=False, repr=False)
class Chart(Shown):
    """A chart. A notebook shows it as a picture; ``print`` writes its numbers.

    Attributes:
        title: what it shows.
        notes: sentences below it.
    """

    title: str
    _: KW_ONLY
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.notes = [note for note in self.notes if note]

    def rows(self) -> list[str]:
        """Return its data as lines of text."""
        raise NotImplementedError

    def body(self, parts: Elements) -> tuple[float, float]:
        """Draw what is between the title and the notes, below `TOP`; return the width that it needs and its bottom."""
        raise NotImplementedError

    def _words(self) -> str:
        return "\n".join([f"{self.title}:", *self.rows(), *self.notes])

    def _drawn(self, *, themed: bool) -> str:
        parts = Elements()
        wide, bottom = self.body(parts)
        wide = page_wide(wide + PAD, self.title, self.notes)
        return parts.page(wide, bottom, self.title, self._words(), self.notes, themed=themed)
