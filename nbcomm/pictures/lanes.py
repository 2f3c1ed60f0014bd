"""The layout for few ranks: lines from lane to lane show what moves. Also the barrier, in which nothing moves."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .canvas import CHAR, HUB, INK, QUIET, SANS, Canvas, colour
from .layout import LABEL, MOST_LANES, PAD, TOP, Layout
from .plan import Cell, Flow

_TRACK = 2.8
"""Pixels between the lines that leave the items of a lane."""


class LaneLayout(Layout):
    """A layout with the data before on the left, the data after on the right, and lines between them."""

    def __init__(self, canvas: Canvas) -> None:
        plan = canvas.plan
        many = max((len(row) for row in plan.before.values()), default=0)
        # If a rank has several items, their lines run between the lanes to the lanes' ends.
        super().__init__(canvas, canvas.tall + max(10.0, 6 + _TRACK * many if many > 1 else 0))
        self.ruled = many <= 1
        self.left = max([canvas.wide(row) for row in plan.before.values()] + [44.0])
        right = max([canvas.wide(row) for row in plan.after.values()] + [44.0])
        self.before_x = PAD + LABEL
        self.after_x = self.before_x + self.left + 150
        self.wide = self.after_x + right + PAD
        self.places = {rank: place for place, rank in enumerate(plan.ranks)}

    def draw(self, wide: float) -> None:  # noqa: ARG002 - as wide as its cells
        """Draw the lines, and then the cells over them."""
        canvas, plan = self.canvas, self.plan
        canvas.write(self.before_x, 50, "before", size=11.5, fill=QUIET, font=SANS)
        canvas.write(self.after_x, 50, "after", size=11.5, fill=QUIET, font=SANS)
        if plan.hub:
            self._hub()
        for flow in () if plan.hub else plan.flows:
            self._flow(flow)
        for place, rank in enumerate(plan.ranks):
            canvas.row(self.before_x, self.middle(place), plan.before.get(rank, ()), "")
            canvas.row(self.after_x, self.middle(place), plan.after.get(rank, ()), self.nothing(rank))

    def _hub(self) -> None:
        """Draw lines that meet in one point, where straight lines would be too many to follow."""
        canvas, plan = self.canvas, self.plan
        x = self.before_x + self.left + (self.after_x - self.before_x - self.left) / 2
        y = TOP + len(plan.ranks) * self.step / 2
        for rank in [rank for rank in plan.ranks if plan.before.get(rank)]:  # also if the call never completed
            start = self.before_x + canvas.wide(plan.before[rank]) + 2
            self._line(f"M{start:.1f} {self.middle(self.places[rank]):.1f}", (x, y), rank, arrow=False)
        for rank in dict.fromkeys(flow.dst for flow in plan.flows):
            self._line(f"M{x:.1f} {y:.1f}", (self.after_x - 3, self.middle(self.places[rank])), None)
        wide = max(34.0, len(plan.hub) * CHAR + 16)
        canvas.rect(x - wide / 2, y - 13, wide, 26, HUB, rx=13)
        canvas.write(x, y + 4, plan.hub, size=12, fill="#FFFFFF", anchor="middle", weight="600")

    def _flow(self, flow: Flow) -> None:
        plan = self.plan
        cells, to = plan.before[flow.src], self.places[flow.dst]
        end = self._port(to, flow.place, len(plan.after[flow.dst]))
        if plan.name in ("scan", "reduce_scatter"):  # many into one cell
            end = self._port(to, self.places[flow.src], len(plan.ranks))
        self._line(self._start(flow, cells), (self.after_x - 3, end), flow.src)

    def _start(self, flow: Flow, cells: Sequence[Cell]) -> str:
        """Return the path of a line from its item to the end of the lane, above or below the items on its right."""
        canvas, own, item = self.canvas, self.places[flow.src], flow.item
        middle, right = self.middle(own), self.before_x + canvas.wide(cells[: item + 1])
        if item == len(cells) - 1:
            return f"M{right + 2:.1f} {middle:.1f}"
        up = item < own  # towards the lane of its receiver
        side = -1 if up else 1
        # The leftmost line runs furthest out, so that no lines cross.
        between = own - 1 - item if up else len(cells) - 2 - item
        x, edge = right - canvas.cell_wide(cells[item]) / 2, middle + side * canvas.tall / 2
        y = edge + side * (3 + _TRACK * between)
        bend = y - side * 2
        return f"M{x:.1f} {edge:.1f}V{bend:.1f}Q{x:.1f} {y:.1f} {x + 2:.1f} {y:.1f}H{self.before_x + self.left + 2:.1f}"

    def _port(self, place: int, item: int, count: int) -> float:
        """Return the height at which a line enters a lane: each line at its own, so that they can be distinguished."""
        spread = (self.canvas.tall - 8) / max(1, count)
        return self.middle(place) + (item - (count - 1) / 2) * spread

    def _line(self, way: str, to: tuple[float, float], rank: int | None, *, arrow: bool = True) -> None:
        """Draw a path and its continuation to a point, in the rank's colour."""
        ink, (x2, y2) = QUIET if rank is None else colour(rank), to
        x1, y1 = _end(way)
        bend, end = (x2 - x1) / 2, x2 - 6 if arrow else x2
        self.canvas.line(f"{way}C{x1 + bend:.1f} {y1:.1f} {x2 - bend:.1f} {y2:.1f} {end:.1f} {y2:.1f}", ink, 1.7)
        if arrow:
            self.canvas.add(f'<path d="M{x2:.1f} {y2:.1f}l-7 -3.6v7.2z" fill="{ink}"/>')


def _end(way: str) -> tuple[float, float]:
    """Return the end point of a path: ``M x y``, or ``… Q … x y H x``."""
    start, _, across = way.rpartition("H") if "H" in way else (way, "", "")
    x, y = re.split("[ MQ]", start)[-2:]
    return float(across or x), float(y)


class Barrier(Layout):
    """A layout with a bar until each rank arrived, dashes while it waits, and a line where all continue."""

    def __init__(self, canvas: Canvas) -> None:
        super().__init__(canvas, 36 if len(canvas.plan.ranks) <= MOST_LANES else 26)

    def draw(self, wide: float) -> None:
        """Draw the bars over the whole width."""
        canvas, plan = self.canvas, self.plan
        arrivals = {rank: plan.arrivals.get(rank, 0.0) for rank in plan.ranks}
        last = max(arrivals.values()) or 1.0
        x = PAD + LABEL
        release = wide - PAD - 90
        for place, rank in enumerate(plan.ranks):
            y = self.middle(place)
            if rank in plan.missing:
                canvas.write(x + 4, y + 4, self.nothing(rank), size=12, fill=QUIET)
                continue
            came = x + max(3.0, (release - x) * arrivals[rank] / last)
            canvas.rect(x, y - 6, came - x, 12, colour(rank), rx=3)
            if came < release - 1:
                canvas.line(f"M{came:.1f} {y:.1f}H{release:.1f}", QUIET, 1.6, dashes="4 4")
            canvas.write(release + 8, y + 4, f"{arrivals[rank]:.2f} s", size=12, fill=QUIET)
        if not plan.missing:
            canvas.line(f"M{release:.1f} {TOP - 2}V{TOP + len(plan.ranks) * self.step}", INK, 2)
            canvas.write(release, 50, "all continue", size=11.5, fill=QUIET, anchor="middle", font=SANS)
