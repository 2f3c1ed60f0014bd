"""The cells of a picture of a collective, each with a value in the colour of the rank whose data it is."""

from __future__ import annotations

from collections.abc import Sequence

from ..short_repr import fitted
from .elements import CHAR, HUB, PLATE, QUIET, Elements, on
from .plan import Cell, Plan


class Canvas(Elements):
    """The parts of a picture so far.

    Attributes:
        plan: the plan that is drawn.
        longest: characters that fit into a cell.
        tall: pixels of a cell's height.
        band: pixels of the part of a cell's frame that names the rank whose data it is.
    """

    def __init__(self, plan: Plan, longest: int, tall: float) -> None:
        super().__init__()
        self.plan, self.longest, self.tall = plan, longest, tall
        self.band = max([20.0, *(len(str(rank)) * CHAR + 8 for rank in plan.ranks)])
        self._texts = {**self._fitted(plan.before), **self._fitted(plan.after)}

    def _fitted(self, rows: dict[int, tuple[Cell, ...]]) -> dict[int, str]:
        """Return each cell's shortened text by its identity: equal texts may differ between before and after."""
        cells = [cell for row in rows.values() for cell in row]
        return {id(cell): text for cell, text in zip(cells, fitted([c.text for c in cells], self.longest), strict=True)}

    def shown(self, cell: Cell) -> str:
        """Return the text of a cell, shortened to fit."""
        return self._texts[id(cell)]

    def wide(self, cells: Sequence[Cell | None]) -> float:
        """Return the width of cells side by side, in pixels."""
        return sum(self.cell_wide(cell) + 4 for cell in cells) - 4 if cells else 0.0

    def cell_wide(self, cell: Cell | None) -> float:
        """Return the width of a cell, in pixels; None stands for those that are left out."""
        return 14.0 if cell is None else max(20.0, len(self.shown(cell)) * CHAR + 8) + self.band + 3

    def hub(self, x: float, y: float, text: str) -> None:
        """Add the point in which all data meets: an op, or "all"."""
        wide = hub_wide(text)
        self.rect(x - wide / 2, y - 15, wide, 30, HUB, rx=15)
        self.write(x, y + 5, text, fill="#FFFFFF", anchor="middle", weight="600")

    def row(self, x: float, middle: float, cells: Sequence[Cell | None], nothing: str) -> None:
        """Add cells side by side, with "…" for those that are left out, or the text ``nothing`` if there are none."""
        y = middle - self.tall / 2
        if not cells:
            self.write(x + 4, middle + 5, nothing, fill=QUIET)
        for cell in cells:
            wide = self.cell_wide(cell)
            if cell is None:
                self.write(x + 4, middle + 5, "…", fill=QUIET)
                x += wide + 4
                continue
            self.owned(x, y, wide, self.tall, cell.sources, rx=5)
            plate = wide - self.band - 3
            self.rect(x + self.band, y + 3, plate, self.tall - 6, PLATE, rx=3)
            self.write(x + self.band + plate / 2, middle + 5, self.shown(cell), anchor="middle")
            if len(cell.sources) == 1:
                rank = cell.sources[0]
                self.write(x + self.band / 2, middle + 5, str(rank), fill=on(rank), anchor="middle")
            x += wide + 4


def hub_wide(text: str) -> float:
    """Return the width of a hub, in pixels."""
    return max(40.0, len(text) * CHAR + 18)
