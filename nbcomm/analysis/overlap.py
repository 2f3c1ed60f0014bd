"""Where a step's time went, and how much of the transfer was hidden behind a rank's own work.

The number is that of HTA: hidden transfer over all transfer
(github.com/facebookresearch/HolisticTraceAnalysis, communication_analysis.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .matching import MatchedCall
from .story import Timeline

_Stretch = tuple[float, float]


@dataclass(frozen=True)
class Spent:
    """How a rank spent the time of a cell, in seconds.

    Attributes:
        work: its own work, while no data of its moved.
        hidden: its own work, while data moved.
        exposed: it waited for data that moved.
        waiting: it waited for other ranks to arrive.
    """

    work: float
    hidden: float
    exposed: float
    waiting: float


def spent(line: Timeline, met: Sequence[MatchedCall], zero: float) -> dict[int, Spent]:
    """Return how each rank spent a cell.

    Args:
        line: the cell's timeline.
        met: its matched calls, whose ends are known: it was traced.
        zero: when it began; the timeline counts from there.
    """
    moving: dict[int, list[_Stretch]] = {rank: [] for rank in line.spans}
    for call in met:
        for rank, step in call.steps.items():
            if rank in moving and step.ended > call.met and len(call.members) > 1:
                moving[rank].append((call.met - zero, step.ended - zero))
    found = {}
    for rank, spans in line.spans.items():
        work, waiting, exposed = line.totals[rank]
        own = [(span.start, span.end) for span in spans if span.kind == "compute"]
        hidden = shared(own, joined(moving[rank]))
        found[rank] = Spent(work - hidden, hidden, exposed, waiting)
    return found


def overlap(parts: Mapping[int, Spent]) -> float | None:
    """Return hidden transfer over all transfer, of all ranks: 0 to 1; None if nothing was moved."""
    hidden, exposed = sum(each.hidden for each in parts.values()), sum(each.exposed for each in parts.values())
    return hidden / (hidden + exposed) if hidden + exposed > 0 else None


def joined(stretches: Iterable[_Stretch]) -> list[_Stretch]:
    """Join stretches that touch.

    >>> joined([(3, 4), (0, 1), (0.5, 2)])
    [(0, 2), (3, 4)]
    """
    found: list[_Stretch] = []
    for start, end in sorted(stretches):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def shared(one: Sequence[_Stretch], other: Sequence[_Stretch]) -> float:
    """Return how long both lists of stretches go on at once; within each list none may touch.

    >>> shared([(0, 2), (3, 5)], [(1, 4)])
    2
    """
    total: float = 0
    place = 0
    for start, end in one:
        while place < len(other) and other[place][1] <= start:
            place += 1
        at = place
        while at < len(other) and other[at][0] < end:
            total += min(end, other[at][1]) - max(start, other[at][0])
            at += 1
    return total
