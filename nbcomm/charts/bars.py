"""Rows of pieces: a bar of parts for each rank (its time, its memory), or what each rank did along a common time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ..durations import short
from ..pictures.elements import COLOURS, LINE, ON, PAD, SANS, Elements, wide_of
from .chart import ROW, TOP, Chart
from .ticks import even

_LONG = 600
"""Pixels of the longest row."""


@dataclass(frozen=True)
class Stretch:
    """A piece of a row.

    Attributes:
        kind: what it is, one of the chart's kinds.
        start: where it begins, for example in seconds.
        end: where it ends.
        text: what is written in it.
    """

    kind: str
    start: float
    end: float
    text: str = ""


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
        fills = {kind: number for number, kind in enumerate(self.kinds)}
        return _drawn(
            parts,
            fills,
            rows,
            unit=self.unit,
            ticks=self.ticks,
            behind=lambda own: self.unit(own[-1].end if own else 0),
        )

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
        fills = {kind: number + 1 for number, kind in enumerate(self.kinds)}
        return _drawn(parts, fills, rows, unit=short, ticks=even, behind=lambda _: "")


def _drawn(  # noqa: PLR0913 - what rows of pieces have
    parts: Elements,
    places: Mapping[str, int],
    rows: Mapping[str, Sequence[Stretch]],
    *,
    unit: Callable[[float], str],
    ticks: Callable[[float], list[float]],
    behind: Callable[[Sequence[Stretch]], str],
) -> tuple[float, float]:
    """Draw the legend, the rows with a text behind each, and the axis; return the width and the bottom."""
    right = parts.legend(PAD, TOP + 4, {kind: COLOURS[place % 8] for kind, place in places.items()})
    every = [each for own in rows.values() for each in own]
    zero = min([each.start for each in every], default=0.0)
    most = max([each.end - zero for each in every], default=0.0) or 1.0
    left, top = PAD + wide_of([*rows], 40) + 10, TOP + 22
    for place, (name, own) in enumerate(rows.items()):
        y, x = top + place * ROW, left
        parts.write(PAD, y + 17, name, font=SANS)
        parts.line(f"M{left:.1f} {y + 12:.1f}h{_LONG}", LINE, 1)
        for each in own:
            x, wide = left + (each.start - zero) / most * _LONG, (each.end - each.start) / most * _LONG
            parts.rect(x, y, max(1.0, wide - 1), ROW - 6, COLOURS[places[each.kind] % 8])
            if wide > wide_of([each.text]) + 2:
                ink = ON[places[each.kind] % 8]
                parts.write(x + wide / 2, y + 17, each.text, anchor="middle", fill=ink, font=SANS)
            x += wide
        text = behind(own)
        parts.write(x + 8, y + 17, text, font=SANS)
        right = max(right, x + 8 + wide_of([text]))
    bottom = top + len(rows) * ROW + 2
    parts.axis(left, _LONG, bottom, [(at / most, unit(at)) for at in ticks(most)])
    return max(right + 8, left + _LONG + 30), bottom + 28
