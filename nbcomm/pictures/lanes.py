"""The layout for few ranks: lines from lane to lane show what moves. Also the barrier, in which nothing moves."""

from __future__ import annotations

from itertools import accumulate

from .canvas import Canvas
from .elements import GROUND, INK, PAD, QUIET, SANS, colour
from .layout import HEADS, LABEL, MOST_LANES, TOP, Layout
from .plan import Flow

_APART = 6.0
"""Pixels between lines that run side by side."""

_GAP = 10.0
"""Pixels between the cells of two lanes, beside what the lines need."""

_ACROSS = 150.0
"""The least pixels between before and after."""

_WIDE = 2.2
"""Pixels of a line's width."""

_BEND = 5.0
"""Pixels of the radius of a line's bends."""


class LaneLayout(Layout):
    """A layout with the data before on the left, the data after on the right, and lines between them.

    If a rank has several items, their lines leave them upwards, run above the rank's lane to the space between before
    and after, and have a way of their own there: lines cross, and never lie on each other. The first item's line is the
    highest, so the lines of one rank do not cross.
    """

    def __init__(self, canvas: Canvas) -> None:
        plan = canvas.plan
        self.ruled = max((len(row) for row in plan.before.values()), default=0) <= 1
        super().__init__(canvas, canvas.tall + _GAP)
        self.places = {rank: place for place, rank in enumerate(plan.ranks)}
        above = [0.0 if self.ruled else _APART * len(plan.before.get(rank, ())) for rank in plan.ranks]
        self.tops = [*accumulate((room + self.step for room in above), initial=float(TOP))]
        self.left = max([canvas.wide(row) for row in plan.before.values()] + [44.0])
        right = max([canvas.wide(row) for row in plan.after.values()] + [44.0])
        self.before_x = PAD + LABEL
        self.ways = {} if self.ruled else self._ways()
        self.after_x = self.before_x + self.left + max(_ACROSS, _APART * len(self.ways) + 50)
        self.wide = self.after_x + right + PAD

    def middle(self, place: int) -> float:
        """Return the height of the middle of a lane's cells."""
        return self.tops[place + 1] - self.step / 2

    @property
    def bottom(self) -> float:
        """The height at which the lanes end."""
        return self.tops[-1]

    def draw(self, wide: float) -> None:  # noqa: ARG002 - as wide as its cells
        """Draw the lines, and then the cells over them."""
        canvas, plan = self.canvas, self.plan
        canvas.write(self.before_x, HEADS, "before", fill=QUIET, font=SANS)
        canvas.write(self.after_x, HEADS, "after", fill=QUIET, font=SANS)
        if plan.hub:
            self._hub()
        elif self.ruled:
            for flow in plan.flows:
                self._flow(flow)
        else:
            for flow, way in self.ways.items():
                self._route(flow, self.before_x + self.left + 20 + _APART * way)
        for place, rank in enumerate(plan.ranks):
            canvas.row(self.before_x, self.middle(place), plan.before.get(rank, ()), "")
            canvas.row(self.after_x, self.middle(place), plan.after.get(rank, ()), self.nothing(rank))

    def _hub(self) -> None:
        """Draw lines that meet in one point, where straight lines would be too many to follow."""
        canvas, plan = self.canvas, self.plan
        x = self.before_x + self.left + (self.after_x - self.before_x - self.left) / 2
        y = (TOP + self.bottom) / 2
        for rank in [rank for rank in plan.ranks if plan.before.get(rank)]:  # also if the call never completed
            start = self.before_x + canvas.wide(plan.before[rank]) + 2
            self._curve((start, self.middle(self.places[rank])), (x, y), rank, arrow=False)
        for rank in dict.fromkeys(flow.dst for flow in plan.flows):
            self._curve((x, y), (self.after_x - 3, self.middle(self.places[rank])), None)
        canvas.hub(x, y, plan.hub)

    # ── one item for each rank ──────────────────────────────────────────────────────────────────────

    def _flow(self, flow: Flow) -> None:
        start = self.before_x + self.canvas.wide(self.plan.before[flow.src][: flow.item + 1]) + 2
        self._curve((start, self.middle(self.places[flow.src])), (self.after_x - 3, self._port(flow)), flow.src)

    def _port(self, flow: Flow) -> float:
        """Return the height at which a line enters a lane: each line at its own, so that they can be distinguished."""
        to, item, count = self.places[flow.dst], flow.place, len(self.plan.after[flow.dst])
        if self.plan.name in ("scan", "reduce_scatter"):  # many into one cell
            item, count = self.places[flow.src], len(self.plan.ranks)
        return self.middle(to) + (item - (count - 1) / 2) * self._between(count)

    def _between(self, count: int) -> float:
        """Return the pixels between lines that enter a lane."""
        return min(_APART, (self.canvas.tall - 2) / max(1, count))

    def _curve(
        self, start: tuple[float, float], to: tuple[float, float], rank: int | None, *, arrow: bool = True
    ) -> None:
        """Draw a curve between two points, in the rank's colour."""
        (x1, y1), (x2, y2) = start, to
        bend, end = (x2 - x1) / 2, x2 - 6 if arrow else x2
        ink = QUIET if rank is None else colour(rank)
        way = f"M{x1:.1f} {y1:.1f}C{x1 + bend:.1f} {y1:.1f} {x2 - bend:.1f} {y2:.1f} {end:.1f} {y2:.1f}"
        self.canvas.line(way, ink, _WIDE)
        if arrow:
            self._arrow(x2, y2, ink)

    def _arrow(self, x: float, y: float, ink: str, half: float = 4.0) -> None:
        self.canvas.add(f'<path d="M{x:.1f} {y:.1f}l-8 {-half:.1f}v{2 * half:.1f}z" fill="{ink}"/>')

    # ── several items ───────────────────────────────────────────────────────────────────────────────

    def _ways(self) -> dict[Flow, int]:
        """Return each line's place among those that go up or down, from the left.

        The order lets two lines of one rank that go the same way not cross: those that go up have the highest on the
        left, and those that go down on the right.
        """
        up = [flow for flow in self.plan.flows if self.places[flow.dst] < self.places[flow.src]]
        down = [flow for flow in self.plan.flows if self.places[flow.dst] >= self.places[flow.src]]
        ordered = sorted(up, key=self._track) + sorted(down, key=self._track, reverse=True)
        return {flow: way for way, flow in enumerate(ordered)}

    def _track(self, flow: Flow) -> float:
        """Return the height at which a line runs above its lane."""
        top = self.middle(self.places[flow.src]) - self.canvas.tall / 2
        return top - _APART * (len(self.plan.before[flow.src]) - flow.item)

    def _route(self, flow: Flow, turn: float) -> None:
        """Draw a line from its item over the lane to its own way up or down, at ``turn``, and to its lane."""
        cells, y1, y2 = self.plan.before[flow.src], self._track(flow), self._port(flow)
        item = self.before_x + self.canvas.wide(cells[: flow.item + 1]) - self.canvas.cell_wide(cells[flow.item]) / 2
        top, end = self.middle(self.places[flow.src]) - self.canvas.tall / 2, self.after_x - 3
        down = 1 if y2 > y1 else -1
        out, bend = min(_BEND, top - y1), min(_BEND, abs(y2 - y1) / 2)
        way = (
            f"M{item:.1f} {top:.1f}V{y1 + out:.1f}Q{item:.1f} {y1:.1f} {item + out:.1f} {y1:.1f}"
            f"H{turn - bend:.1f}Q{turn:.1f} {y1:.1f} {turn:.1f} {y1 + down * bend:.1f}"
            f"V{y2 - down * bend:.1f}Q{turn:.1f} {y2:.1f} {turn + bend:.1f} {y2:.1f}H{end - 6:.1f}"
        )
        self.canvas.line(way, GROUND, 2 * _WIDE)  # it parts the lines that this one crosses
        self.canvas.line(way, colour(flow.src), _WIDE)
        several = len(self.plan.before) if self.plan.name == "reduce_scatter" else len(self.plan.after[flow.dst])
        self._arrow(end, y2, colour(flow.src), min(4.0, self._between(several) / 2 + 0.5))


class Barrier(Layout):
    """A layout with each rank's time until it arrived and while it waited, and a line where all continue."""

    def __init__(self, canvas: Canvas) -> None:
        super().__init__(canvas, 40 if len(canvas.plan.ranks) <= MOST_LANES else 30)

    def draw(self, wide: float) -> None:
        """Draw the bars over the whole width."""
        canvas, plan = self.canvas, self.plan
        arrivals = {rank: plan.arrivals.get(rank, 0.0) for rank in plan.ranks}
        last = max(arrivals.values()) or 1.0
        x = PAD + LABEL
        release = wide - PAD - 90
        canvas.legend(PAD, HEADS, ["compute", "waiting"])
        for place, rank in enumerate(plan.ranks):
            y = self.middle(place)
            if rank in plan.missing:
                canvas.write(x + 4, y + 5, self.nothing(rank), fill=QUIET)
                continue
            came = x + max(3.0, (release - x) * arrivals[rank] / last)
            canvas.piece(x, y - 7, came - x, 14, "compute")
            if came < release - 1:
                canvas.piece(came, y - 7, release - came, 14, "waiting")
            canvas.write(release + 8, y + 5, f"{arrivals[rank]:.2f} s", fill=QUIET)
        if not plan.missing:
            canvas.line(f"M{release:.1f} {TOP - 2}V{self.bottom}", INK, 2)
            canvas.write(release, HEADS, "all continue", fill=QUIET, anchor="middle", font=SANS)
