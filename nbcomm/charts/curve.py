"""Time against size, both on a logarithmic axis, with the line that fits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..durations import short
from ..pictures.elements import COLOURS, LINE, QUIET, SANS, Elements
from ..short_repr import amount
from .chart import PAD, TOP, Chart, legend, wide_of
from .ticks import powers

_WIDE, _TALL = 640, 280
_ROOM = 60
"""Pixels that a label needs beside its point."""


class Curve(Chart):
    """Points, and lines through them.

    Attributes:
        points: for each series, its sizes in bytes with their times in seconds.
        lines: for each line's name, the same.
        labels: what is written above the points of a size.
    """

    def __init__(
        self,
        title: str,
        points: Mapping[str, Sequence[tuple[float, float]]],
        lines: Mapping[str, Sequence[tuple[float, float]]],
        notes: Sequence[str] = (),
        *,
        labels: Mapping[int, str] | None = None,
    ) -> None:
        super().__init__(title, notes)
        self.points = {name: list(each) for name, each in points.items()}
        self.lines = {name: list(each) for name, each in lines.items()}
        self.labels = {float(size): text for size, text in (labels or {}).items()}

    def rows(self) -> list[str]:
        """Write each series as a line for each size."""
        several = len(self.points) > 1
        return [
            f"{name + ', ' if several else ''}{amount(round(size))}: {short(seconds)}"
            for name, each in self.points.items()
            for size, seconds in each
        ]

    def body(self, parts: Elements) -> tuple[float, float]:
        """Draw the legend, both axes, the lines and the points."""
        names = [*self.points, *self.lines]
        fills = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}
        end = legend(parts, PAD, TOP + 4, fills)
        every = [point for each in [*self.points.values(), *self.lines.values()] for point in each]
        sizes, times = [size for size, _ in every], [time for _, time in every]
        across, up = powers(min(sizes), max(sizes), 4), powers(min(times), max(times), 10)
        labels = [short(at) for at in up]
        left, top = PAD + wide_of(labels) + 10, TOP + 24

        def place(size: float, seconds: float) -> tuple[float, float]:
            return (
                left + _part(size, across) * _WIDE,
                top + (1 - _part(seconds, up)) * _TALL,
            )

        for at, text in zip(up, labels, strict=True):
            _, y = place(across[0], at)
            parts.line(f"M{left:.1f} {y:.1f}h{_WIDE}", LINE, 1)
            parts.write(left - 8, y + 5, text, fill=QUIET, anchor="end", font=SANS)
        for at in across:
            x, _ = place(at, up[0])
            parts.line(f"M{x:.1f} {top}v{_TALL}", LINE, 1)
            parts.write(x, top + _TALL + 20, amount(round(at)), fill=QUIET, anchor="middle", font=SANS)
        for name, each in self.lines.items():
            way = "L".join(f"{x:.1f} {y:.1f}" for x, y in (place(*point) for point in each))
            parts.line(f"M{way}", fills[name], 2.5)
        for name, each in self.points.items():
            for point in each:
                x, y = place(*point)
                parts.rect(x - 4, y - 4, 8, 8, fills[name], rx=4)
                if point[0] in self.labels:
                    # A line rises to the right, so there is room on the left of a point, and for the first one below.
                    first = x - left < _ROOM
                    across_by, down_by, anchor = (0, 22, "start") if first else (-4, -10, "end")
                    text = self.labels[point[0]]
                    parts.write(x + across_by, y + down_by, text, fill=QUIET, anchor=anchor, font=SANS)
        return max(end, left + _WIDE + 30), top + _TALL + 28


def _part(value: float, marks: Sequence[float]) -> float:
    first, last = math.log(marks[0]), math.log(marks[-1])
    return (math.log(value) - first) / (last - first)
