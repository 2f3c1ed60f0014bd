"""The base of all charts: a title, a body, notes below it, and the same in words."""

from __future__ import annotations

from collections.abc import Sequence

from ..pictures.elements import CHAR, INK, PLATE, QUIET, SANS, TEXT, WORDS, Elements, colour, on
from ..pictures.picture import Shown

PAD, TOP, ROW = 16, 56, 30
"""Pixels around a chart, above its body, and of a row's height."""

LEAST = 420
"""The least width of a chart, in pixels."""

_LINE = 20


class Chart(Shown):
    """A chart. A notebook shows it as a picture; ``print`` writes its numbers.

    Attributes:
        title: what it shows.
        notes: sentences below it.
    """

    def __init__(self, title: str, notes: Sequence[str] = ()) -> None:
        self.title = title
        self.notes = [note for note in notes if note]

    def rows(self) -> list[str]:
        """Return its data as lines of text."""
        raise NotImplementedError

    def body(self, parts: Elements) -> tuple[float, float]:
        """Draw what is between the title and the notes, below `TOP`; return the width that it needs and its bottom."""
        raise NotImplementedError

    def _words(self) -> str:
        return "\n".join([f"{self.title}:", *self.rows(), *self.notes])

    def _drawn(self, *, themed: bool) -> str:
        body = Elements()
        wide, bottom = self.body(body)
        words = max(len(self.title) * WORDS * 18 / TEXT, *(len(note) * WORDS for note in ("", *self.notes)))
        wide = max(LEAST, wide + PAD, words + 2 * PAD)
        page = Elements()
        page.open(wide, bottom + 14 + _LINE * len(self.notes), self.title, self._words(), themed=themed)
        page.write(PAD, 30, self.title, size=18, weight="600", font=SANS)
        page.parts.extend(body.parts)
        for number, note in enumerate(self.notes):
            page.write(PAD, bottom + 18 + _LINE * number, note, fill=QUIET, font=SANS)
        page.add("</svg>")
        return "".join(page.parts)


def wide_of(texts: Sequence[str], least: float = 0.0) -> float:
    """Return the pixels that the longest of some texts needs."""
    return max([least, *(len(text) * WORDS for text in texts)])


def legend(parts: Elements, x: float, y: float, colours: dict[str, str]) -> float:
    """Name colours in a line, each beside a box of it; return where the line ends."""
    for name, fill in colours.items():
        parts.rect(x, y - 11, 14, 14, fill, rx=3)
        parts.write(x + 20, y + 1, name, fill=QUIET, font=SANS)
        x += 20 + wide_of([name]) + 18
    return x


def owned(
    parts: Elements, corner: tuple[float, float], size: tuple[float, float], owners: Sequence[int], text: str
) -> None:
    """Draw a box in the colour of the rank that owns it, or with a stripe for each rank if several do.

    Args:
        parts: where it is drawn.
        corner: the upper left one.
        size: its width and height.
        owners: the ranks; a box of none is empty.
        text: what is written in it.
    """
    (x, y), (wide, tall), ink = corner, size, INK
    if len(owners) == 1:
        parts.rect(x, y, wide, tall, colour(owners[0]), rx=3)
        ink = on(owners[0])
    elif owners:
        each = tall / len(owners)
        for number, rank in enumerate(owners):
            parts.rect(x, y + number * each, wide, each + 0.2, colour(rank))
        plate = min(wide - 6, len(text) * CHAR + 6)
        parts.rect(x + (wide - plate) / 2, y + tall / 2 - 10, plate, 20, PLATE, rx=3)
    else:
        parts.rect(x + 0.5, y + 0.5, wide - 1, tall - 1, "none", rx=3, stroke=QUIET)
    parts.write(x + wide / 2, y + tall / 2 + 5, text, anchor="middle", fill=ink)


def axis(parts: Elements, x: float, wide: float, y: float, ticks: Sequence[tuple[float, str]]) -> None:
    """Draw a horizontal axis; a tick has its place, from 0 to 1, and its text."""
    parts.line(f"M{x:.1f} {y:.1f}H{x + wide:.1f}", QUIET, 1)
    for part, text in ticks:
        at = x + part * wide
        parts.line(f"M{at:.1f} {y:.1f}v5", QUIET, 1)
        parts.write(at, y + 20, text, fill=QUIET, anchor="middle", font=SANS)
