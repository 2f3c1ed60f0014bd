"""A bar for each rank, made of parts: where its time went, or its memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..pictures.elements import COLOURS, ON, SANS, Elements
from .chart import PAD, ROW, TOP, Chart, axis, legend, wide_of
from .ticks import even

_LONG = 560
"""Pixels of the longest bar."""


class Bars(Chart):
    """Bars made of parts.

    Attributes:
        kinds: the names of the parts, in their order.
        values: for each bar's name, the size of each part.
        unit: writes a size.
        ticks: returns the marks of the axis for the longest bar.
    """

    def __init__(  # noqa: PLR0913 - what a chart of bars has
        self,
        title: str,
        kinds: Sequence[str],
        values: Mapping[str, Sequence[float]],
        notes: Sequence[str] = (),
        *,
        unit: Callable[[float], str],
        ticks: Callable[[float], list[float]] = even,
    ) -> None:
        super().__init__(title, notes)
        self.kinds, self.unit, self.ticks = list(kinds), unit, ticks
        self.values = {name: list(parts) for name, parts in values.items()}

    def rows(self) -> list[str]:
        """Write each bar as a line: the parts that it has, and their sum."""
        lines = []
        for name, parts in self.values.items():
            told = [f"{kind} {self.unit(size)}" for kind, size in zip(self.kinds, parts, strict=True) if size]
            lines.append(f"{name}: {', '.join(told) or 'nothing'}; {self.unit(sum(parts))} in all")
        return lines

    def body(self, parts: Elements) -> tuple[float, float]:
        """Draw the legend, the bars, and the axis."""
        fills = [COLOURS[number % len(COLOURS)] for number in range(len(self.kinds))]
        end = legend(parts, PAD, TOP + 4, dict(zip(self.kinds, fills, strict=True)))
        left, top = PAD + wide_of([*self.values], 40) + 10, TOP + 22
        most = max([sum(each) for each in self.values.values()] + [0.0]) or 1.0
        for place, (name, sizes) in enumerate(self.values.items()):
            y, x = top + place * ROW, left
            parts.write(PAD, y + 17, name, font=SANS)
            for number, size in enumerate(sizes):
                wide, text = size / most * _LONG, self.unit(size)
                if wide <= 0:
                    continue
                parts.rect(x, y, wide, ROW - 6, fills[number])
                if wide > wide_of([text]) + 8:
                    ink = ON[number % len(ON)]
                    parts.write(x + wide / 2, y + 17, text, anchor="middle", fill=ink, font=SANS)
                x += wide
            parts.write(x + 8, y + 17, self.unit(sum(sizes)), font=SANS)
        bottom = top + len(self.values) * ROW + 2
        axis(parts, left, _LONG, bottom, [(at / most, self.unit(at)) for at in self.ticks(most)])
        return max(end, left + _LONG + 8 + wide_of([self.unit(most)]) + 8), bottom + 28
