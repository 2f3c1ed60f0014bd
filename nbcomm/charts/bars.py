"""Rows of pieces: a bar of parts for each rank (its time, its memory), or what each rank did along a common time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ..analysis.schedule import Stretch
from ..durations import short
from ..pictures.elements import LINE, PAD, SANS, Elements, wide_of
from .chart import ROW, TOP, Chart
from .ticks import even

_LONG = 600
"""Pixels of the longest row."""

_BESIDE = 24
"""Pixels of a piece beside its text, in which its pattern is seen."""


@dataclass(eq=False, repr=False)
class Bars(Chart):
    """Bars made of parts.

    Attributes:
        kinds: the names of the parts, in their order.
        values: for each bar's name, the size of each part.
        unit: writes a size.
        ticks: returns the marks of the axis for the longest bar.
    """

    kinds: Sequence[str]
    values: Mapping[str, Sequence[float]]
    unit: Callable[[float], str]
    ticks: Callable[[float], list[float]] = even

    def rows(self) -> list[str]:
        """Write each bar as a line: the parts that it has, and their sum."""
        lines = []
        for name, parts in self.values.items():
            told = [f"{kind} {self.unit(size)}" for kind, size in zip(self.kinds, parts, strict=True) if size]
            lines.append(f"{name}: {', '.join(told) or 'nothing'}; {self.unit(sum(parts))} in all")
        return lines

    def body(self, parts: Elements) -> tuple[float, float]:
        """Draw the legend, the bars, and the axis."""
        rows = {name: self._stacked(sizes) for name, sizes in self.values.items()}
        return _drawn(parts, self.kinds, rows, unit=self.unit, ticks=self.ticks, behind=self._behind)

    def _behind(self, own: Sequence[Stretch], apart: Sequence[Stretch]) -> str:
        """Return a bar's sum, with the parts that have no room for their own text."""
        told = ", ".join(f"{each.kind} {each.text}" for each in apart)
        return self.unit(own[-1].end if own else 0) + f" ({told})" * bool(told)

    def _stacked(self, sizes: Sequence[float]) -> list[Stretch]:
        ends = [*accumulate(sizes, initial=0.0)]
        named = zip(self.kinds, sizes, ends, ends[1:], strict=False)
        return [Stretch(kind, start, end, self.unit(size)) for kind, size, start, end in named if size > 0]


@dataclass(eq=False, repr=False)
class Schedule(Chart):
    """What each rank did when, along a common time.

    Attributes:
        kinds: the names of what ranks do.
        stretches: of each rank, in order, in seconds; between them it did nothing.
    """

    kinds: Sequence[str]
    stretches: Mapping[int, Sequence[Stretch]]

    def rows(self) -> list[str]:
        """Write each rank's stretches as a line."""
        return [
            f"rank {rank}: {', '.join(f'{each.text or each.kind} {short(each.end - each.start)}' for each in own)}"
            for rank, own in self.stretches.items()
        ]

    def body(self, parts: Elements) -> tuple[float, float]:
        """Draw the legend, a row for each rank, and the time."""
        rows = {f"rank {rank}": own for rank, own in self.stretches.items()}
        return _drawn(parts, self.kinds, rows, unit=short, ticks=even, behind=lambda *_: "")


def _drawn(  # noqa: PLR0913 - what rows of pieces have
    parts: Elements,
    kinds: Sequence[str],
    rows: Mapping[str, Sequence[Stretch]],
    *,
    unit: Callable[[float], str],
    ticks: Callable[[float], list[float]],
    behind: Callable[[Sequence[Stretch], Sequence[Stretch]], str],
) -> tuple[float, float]:
    """Draw the legend, the rows, and the axis; return the width and the bottom.

    Args:
        parts: where they are drawn.
        kinds: those of the legend.
        rows: the pieces of each row, by its name.
        unit: writes a place of the axis.
        ticks: returns the marks of the axis.
        behind: returns the text behind a row, of its pieces and those among them that are too short for their text.
    """
    right = parts.legend(PAD, TOP + 4, kinds)
    every = [each for own in rows.values() for each in own]
    zero = min([each.start for each in every], default=0.0)
    most = max([each.end - zero for each in every], default=0.0) or 1.0
    left, top = PAD + wide_of([*rows], 40) + 10, TOP + 22
    for place, (name, own) in enumerate(rows.items()):
        y, end, short_ones = top + place * ROW, left, []
        parts.write(PAD, y + 17, name, font=SANS)
        parts.line(f"M{left:.1f} {y + 12:.1f}h{_LONG}", LINE, 1)
        for each in own:
            x, wide = left + (each.start - zero) / most * _LONG, (each.end - each.start) / most * _LONG
            parts.piece(x, y, max(1.0, wide - 1), ROW - 6, each.kind)
            if wide > wide_of([each.text]) + _BESIDE:
                parts.plated(x + wide / 2, y + 12, each.text, SANS)
            else:
                short_ones.append(each)
            end = x + wide
        text = behind(own, short_ones)
        parts.write(end + 8, y + 17, text, font=SANS)
        right = max(right, end + 8 + wide_of([text]))
    bottom = top + len(rows) * ROW + 2
    parts.axis(left, _LONG, bottom, [(at / most, unit(at)) for at in ticks(most)])
    return max(right + 8, left + _LONG + 30), bottom + 28
