"""A table of boxes: which rank had which sample, or how much went from rank to rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..pictures.elements import CHAR, PAD, PLATE, QUIET, SANS, Elements, colour, wide_of
from .chart import TOP, Chart


@dataclass(frozen=True)
class Box:
    """One box of a grid.

    Attributes:
        text: what is written in it.
        owners: the ranks whose colours it has.
        share: of a quantity: how large it is beside the largest one, 0 to 1; None of a box that shows its owners.
    """

    text: str
    owners: tuple[int, ...] = ()
    share: float | None = None


@dataclass(eq=False, repr=False)
class Grid(Chart):
    """A grid of boxes.

    Attributes:
        heads: the names of the columns, and of the rows: "to rank", "from rank".
        columns: the text above each column.
        boxes: for each row's name, its boxes.
    """

    heads: tuple[str, str]
    columns: Sequence[str]
    boxes: Mapping[str, Sequence[Box]]

    def rows(self) -> list[str]:
        """Write each row as a line."""
        row, column = self.heads[1], self.heads[0]
        lines = [f"{column} {' '.join(self.columns)}"]
        return [
            *lines,
            *(f"{row} {name}: {' '.join(box.text or '–' for box in boxes)}" for name, boxes in self.boxes.items()),
        ]

    def body(self, parts: Elements) -> tuple[float, float]:
        """Draw the heads, and row by row the boxes."""
        texts = [box.text for boxes in self.boxes.values() for box in boxes]
        side, tall = max(30.0, max(map(len, [*texts, *self.columns])) * CHAR + 12), 34
        left = PAD + wide_of([f"{self.heads[1]} {name}" for name in self.boxes]) + 10
        parts.write(left, TOP, self.heads[0], fill=QUIET, font=SANS)
        for number, text in enumerate(self.columns):
            parts.write(left + (number + 0.5) * side, TOP + 20, text, fill=QUIET, anchor="middle")
        for place, (name, boxes) in enumerate(self.boxes.items()):
            y = TOP + 28 + place * tall
            parts.write(PAD, y + 20, f"{self.heads[1]} {name}", font=SANS)
            for number, box in enumerate(boxes):
                x = left + number * side + 1
                if box.share is None:
                    parts.owned(x, y + 1, side - 2, tall - 2, box.owners, text=box.text or "–")
                    continue
                parts.rect(x, y + 1, side - 2, tall - 2, PLATE, rx=3, stroke=QUIET)
                parts.write(x + side / 2 - 1, y + 19, box.text, anchor="middle")
                if box.share:
                    parts.rect(x + 3, y + tall - 9, max(1.0, box.share * (side - 8)), 5, colour(box.owners[0]))
        return left + len(self.columns) * side, TOP + 28 + len(self.boxes) * tall + 8
