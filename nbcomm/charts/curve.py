"""Time against size, both on a logarithmic axis, with the line that fits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..durations import short
from ..pictures.elements import INK, LINE, PAD, QUIET, SANS, Elements, wide_of
from ..short_repr import amount
from .chart import TOP, Chart
from .ticks import powers

_WIDE, _TALL = 640, 280
_DOTS, _LAW = "measured, with the bus bandwidth", "α + β · bytes"
_ROOM = 60
"""Pixels that a label needs beside its point."""


@dataclass(eq=False, repr=False)
class Curve(Chart):
    """Points, and a line through them.

    Attributes:
        points: sizes in bytes with their times in seconds.
        law: returns the seconds of a size: the line.
        labels: what is written above each point.
    """

    points: Sequence[tuple[float, float]]
    law: Callable[[float], float]
    labels: Sequence[str]

    def rows(self) -> list[str]:
        """Write a line for each size."""
        return [f"{amount(round(size))}: {short(seconds)}" for size, seconds in self.points]

    def body(self, parts: Elements) -> tuple[float, float]:
        """Draw the legend, both axes, the line and the points."""
        parts.rect(PAD + 3, TOP - 4, 8, 8, INK, rx=4)
        parts.write(PAD + 20, TOP + 5, _DOTS, fill=QUIET, font=SANS)
        end = PAD + 20 + wide_of([_DOTS]) + 18
        parts.line(f"M{end} {TOP}h22", QUIET, 2.5)
        parts.write(end + 28, TOP + 5, _LAW, fill=QUIET, font=SANS)
        sizes = [size for size, _ in self.points]
        steps = [sizes[0] * (sizes[-1] / sizes[0]) ** (step / 40) for step in range(41)]
        line = [(size, self.law(size)) for size in steps]
        times = [seconds for _, seconds in [*self.points, *line]]
        across, up = powers(min(sizes), max(sizes), 4), powers(min(times), max(times), 10)
        labels = [short(at) for at in up]
        left, top = PAD + wide_of(labels) + 10, TOP + 24

        def place(size: float, seconds: float) -> tuple[float, float]:
            return left + _part(size, across) * _WIDE, top + (1 - _part(seconds, up)) * _TALL

        for at, text in zip(up, labels, strict=True):
            _, y = place(across[0], at)
            parts.line(f"M{left:.1f} {y:.1f}h{_WIDE}", LINE, 1)
            parts.write(left - 8, y + 5, text, fill=QUIET, anchor="end", font=SANS)
        for at in across:
            x, _ = place(at, up[0])
            parts.line(f"M{x:.1f} {top}v{_TALL}", LINE, 1)
            parts.write(x, top + _TALL + 20, amount(round(at)), fill=QUIET, anchor="middle", font=SANS)
        way = "L".join(f"{x:.1f} {y:.1f}" for x, y in (place(*point) for point in line))
        parts.line(f"M{way}", QUIET, 2.5)
        for point, text in zip(self.points, self.labels, strict=True):
            x, y = place(*point)
            parts.rect(x - 4, y - 4, 8, 8, INK, rx=4)
            # The line rises to the right, so there is room on the left of a point, and for the first one below.
            right, down, anchor = (0, 22, "start") if x - left < _ROOM else (-4, -10, "end")
            parts.write(x + right, y + down, text, fill=QUIET, anchor=anchor, font=SANS)
        return max(end + 28 + wide_of([_LAW]), left + _WIDE + 30), top + _TALL + 28


def _part(value: float, marks: Sequence[float]) -> float:
    first, last = math.log(marks[0]), math.log(marks[-1])
    return (math.log(value) - first) / (last - first)
