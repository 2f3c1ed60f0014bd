"""The layout for many ranks: a row for each sender, a column for each receiver, and a mark where data moves.

Lines between more than a few lanes cannot be followed. If each rank has an item for each other rank, the items are
written into the matrix itself: a row is what its rank had.
"""

from __future__ import annotations

from itertools import groupby

from .canvas import Canvas, hub_wide
from .elements import CHAR, LINE, PAD, QUIET, SANS, colour, on
from .layout import HEADS, LABEL, TOP, Layout
from .plan import Cell, Flow, Plan

_ROOM = 640
"""The most pixels of the matrix's width."""

_CELLS, _SHOWN = 4, 3
"""The most cells of a rank beside the matrix, and how many are shown if there are more: the first ones and the last."""

_LONGEST = 14
"""Characters in a cell beside the matrix; with several cells fewer."""


class Matrix(Layout):
    """The matrix; on its left what each rank has if that is one value, and on its right what each rank gets."""

    def __init__(self, plan: Plan) -> None:
        size = len(plan.ranks)
        several = max((len(row) for row in plan.after.values()), default=0) > 1
        step = 30 if size <= 16 else 25
        super().__init__(Canvas(plan, 7 if several else _LONGEST, step - 5), step)
        canvas = self.canvas
        self.items = max((len(row) for row in plan.before.values()), default=0) > 1
        texts = [canvas.shown(cell) for row in plan.before.values() for cell in row] if self.items else []
        side = max((len(text) for text in texts), default=0) * CHAR + 8
        self.written = self.items and side * size <= _ROOM
        self.side = max(28.0, side) if self.written else min(28.0, _ROOM / size)
        self.before = {} if self.items else plan.before
        self.after = {rank: _ends(row) for rank, row in plan.after.items()}
        self.before_x = PAD + LABEL
        self.left = max([canvas.wide(row) + 14 for row in self.before.values() if row] + [0.0])
        self.matrix_x = self.before_x + self.left
        self.hub_x = self.matrix_x + size * self.side + 14
        self.after_x = self.hub_x + (hub_wide(plan.hub) + 14 if plan.hub else 2)
        self.wide = self.after_x + max([canvas.wide(row) for row in self.after.values()] + [80.0]) + PAD
        self.places = {rank: place for place, rank in enumerate(plan.ranks)}

    def draw(self, wide: float) -> None:  # noqa: ARG002 - as wide as its cells
        """Draw the heads, the matrix row by row, and the values beside it."""
        canvas, plan = self.canvas, self.plan
        if self.left:
            canvas.write(self.before_x, HEADS - 8, "before", fill=QUIET, font=SANS)
        canvas.write(self.matrix_x, HEADS - 8, "to rank", fill=QUIET, font=SANS)
        canvas.write(self.after_x, HEADS - 8, "after", fill=QUIET, font=SANS)
        digits = max(len(str(rank)) for rank in plan.ranks)
        every = next(k for k in (1, 2, 4, 8, 16, 32, 64, 128) if k * self.side >= digits * CHAR + 4 or k == 128)
        for place, rank in enumerate(plan.ranks):
            if place % every == 0:
                x = self.matrix_x + (place + 0.5) * self.side
                canvas.write(x, TOP - 4, str(rank), fill=QUIET, anchor="middle")
        for rank, flows in groupby(sorted(plan.flows, key=lambda flow: self.places[flow.src]), lambda flow: flow.src):
            self._moves(rank, [*flows])
        if plan.hub:
            self._hub()
        top, bottom = TOP, self.bottom
        for place in range(len(plan.ranks) + 1):
            if place % every == 0 or place == len(plan.ranks):
                canvas.line(f"M{self.matrix_x + place * self.side:.1f} {top}V{bottom}", LINE, 0.6)
        for place, rank in enumerate(plan.ranks):
            canvas.row(self.before_x, self.middle(place), self.before.get(rank, ()), "")
            canvas.row(self.after_x, self.middle(place), self.after.get(rank, ()), self.nothing(rank))

    def _hub(self) -> None:
        """Draw what all data goes through on the right of the matrix; and frames, if the call never completed."""
        canvas, plan = self.canvas, self.plan
        canvas.line(f"M{self.hub_x - 8:.1f} {TOP}h4V{self.bottom}h-4", QUIET, 1.5)
        canvas.hub(self.hub_x + hub_wide(plan.hub) / 2, (TOP + self.bottom) / 2, plan.hub)
        for rank in [rank for rank in plan.ranks if plan.before.get(rank) and not plan.flows]:
            y, wide = self.middle(self.places[rank]) - canvas.tall / 2, len(plan.ranks) * self.side
            canvas.rect(self.matrix_x + 1, y + 1, wide - 2, canvas.tall - 2, "none", stroke=colour(rank))

    def _moves(self, rank: int, flows: list[Flow]) -> None:
        """Draw what a rank sends: each item in its place, or one bar over adjacent receivers."""
        canvas, cells = self.canvas, self.plan.before[rank]
        middle = self.middle(self.places[rank])
        y = middle - canvas.tall / 2
        columns = sorted({self.places[flow.dst] for flow in flows})
        if self.written:
            of = {self.places[flow.dst]: cells[flow.item] for flow in flows}
            for column in columns:
                x = self.matrix_x + column * self.side
                canvas.rect(x + 1, y, self.side - 2, canvas.tall, colour(rank), rx=3)
                text = canvas.shown(of[column])
                canvas.write(x + self.side / 2, middle + 5, text, fill=on(rank), anchor="middle")
            return
        for _, run in groupby(enumerate(columns), lambda pair: pair[1] - pair[0]):
            places = [column for _, column in run]
            gap = 1 if self.side > 6 else 0
            x, wide = self.matrix_x + places[0] * self.side + gap, len(places) * self.side - 2 * gap
            canvas.rect(x, y, wide, canvas.tall, colour(rank), rx=3)


def _ends(row: tuple[Cell, ...]) -> tuple[Cell | None, ...]:
    """Return the cells that are shown; None stands for the omitted ones."""
    return row if len(row) <= _CELLS else (*row[: _SHOWN - 1], None, row[-1])
