"""What each rank did when: a row of boxes along a common time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..durations import short
from ..pictures.elements import COLOURS, LINE, ON, SANS, Elements
from .chart import PAD, ROW, TOP, Chart, axis, legend, wide_of
from .ticks import even

_LONG = 640


@dataclass(frozen=True)
class Stretch:
    """A stretch of a rank's time.

    Attributes:
        kind: what it did, one of the schedule's kinds.
        start: when, in seconds.
        end: until when.
        text: what is written in it.
    """

    kind: str
    start: float
    end: float
    text: str = ""


class Schedule(Chart):
    """A row for each rank.

    Attributes:
        kinds: the names of what ranks do.
        stretches: of each rank, in order; between them it did nothing.
    """

    def __init__(
        self,
        title: str,
        kinds: Sequence[str],
        stretches: Mapping[int, Sequence[Stretch]],
        notes: Sequence[str] = (),
    ) -> None:
        super().__init__(title, notes)
        self.kinds = list(kinds)
        self.stretches = {rank: list(own) for rank, own in stretches.items()}

    def rows(self) -> list[str]:
        """Write each rank's stretches as a line."""
        return [
            f"rank {rank}: {', '.join(f'{each.text or each.kind} {short(each.end - each.start)}' for each in own)}"
            for rank, own in self.stretches.items()
        ]

    def body(self, parts: Elements) -> tuple[float, float]:
        """Draw the legend, a row for each rank, and the time."""
        places = {kind: number for number, kind in enumerate(self.kinds)}
        fills = {kind: COLOURS[number + 1] for kind, number in places.items()}
        end = legend(parts, PAD, TOP + 4, fills)
        everything = [each for own in self.stretches.values() for each in own]
        zero = min([each.start for each in everything], default=0.0)
        most = max([each.end for each in everything], default=0.0) - zero or 1.0
        left, top = PAD + wide_of([f"rank {rank}" for rank in self.stretches]) + 10, TOP + 22
        for place, (rank, own) in enumerate(self.stretches.items()):
            y = top + place * ROW
            parts.write(PAD, y + 17, f"rank {rank}", font=SANS)
            parts.line(f"M{left:.1f} {y + 12:.1f}h{_LONG}", LINE, 1)
            for each in own:
                x, wide = left + (each.start - zero) / most * _LONG, (each.end - each.start) / most * _LONG
                parts.rect(x, y, max(1.0, wide - 1), ROW - 6, fills[each.kind], rx=2)
                if wide > wide_of([each.text]) + 2:
                    ink = ON[places[each.kind] + 1]
                    parts.write(x + wide / 2, y + 17, each.text, anchor="middle", fill=ink, font=SANS)
        bottom = top + len(self.stretches) * ROW + 2
        axis(parts, left, _LONG, bottom, [(at / most, short(at)) for at in even(most)])
        return max(end, left + _LONG + 30), bottom + 28
