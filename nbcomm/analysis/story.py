"""What the panel shows beside the ranks' states: each rank's progress in the collectives, and where time went.

Plain data; `nbcomm.analysis.ladder` and `nbcomm.analysis.timeline` make it from what the ranks report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

MARKS = {"done": "●", "arrived": "◐", "missing": "○", "other": "◆", "failed": "✕", "out": ""}
"""A rank's state in one collective: has done it, waits in it, has not reached it, is in another one in its place,
failed in it, is not a member of the group."""

WORDS = {
    "done": "done",
    "arrived": "waits in it",
    "missing": "not reached",
    "other": "in another collective",
    "failed": "failed",
    "out": "not a member",
}
"""The same without a glyph, for legends and screen readers."""

KINDS = ("compute", "waiting", "transfer")
"""What a rank does with its time: its own work, waiting for others to arrive, moving data after all have arrived."""


@dataclass(frozen=True)
class Rung:
    """One collective of a group.

    Attributes:
        seq: its number for people, in the cell.
        name: "all_reduce".
        line: the line of the cell, "line 3: all_reduce(x)"; may be empty.
        marks: one of `MARKS` for each rank of the world, in rank order.
    """

    seq: int
    name: str
    line: str
    marks: tuple[str, ...]


@dataclass(frozen=True)
class Ladder:
    """The last collectives of one group, oldest first.

    Attributes:
        group: "world", or "ranks 0-1".
        rungs: at most a dozen.
    """

    group: str = "world"
    rungs: tuple[Rung, ...] = ()


@dataclass(frozen=True)
class Span:
    """A stretch of a rank's time, in seconds from the start of the cell.

    Attributes:
        kind: one of `KINDS`.
        start: when it began.
        end: when it ended.
        name: the collective, "all_reduce #3"; empty for compute, and for several calls.
        line: the line of the cell, "line 3: all_reduce(x)"; may be empty.
        nbytes: the bytes that the rank brought; 0 if that is not known.
    """

    kind: str
    start: float
    end: float
    name: str = ""
    line: str = ""
    nbytes: int = 0


@dataclass(frozen=True)
class Timeline:
    """How the ranks spent the time of one cell.

    Attributes:
        cell: the notebook's In[number]; 0 where it was no cell, but a call from Python.
        seconds: how long the cell has taken, or takes so far.
        running: whether it still runs.
        spans: for each rank that ran it, its spans in order, without gaps; neighbours of one kind are joined.
        sentence: the straggler by name: "rank 2 came last in 5 of 6 collectives; the others waited 1.2 s for it".
            Empty where there is none.
        late: that straggler.
        rates: how fast data moved between nodes, and within one; empty where there is one node, or little moved.
    """

    cell: int
    seconds: float
    running: bool
    spans: dict[int, tuple[Span, ...]]
    sentence: str = ""
    late: int | None = None
    rates: str = ""

    @property
    def said(self) -> str:
        """What there is to say of it: the straggler, and the rates."""
        sentence = self.sentence.removesuffix(".") if self.rates else self.sentence
        return " · ".join(filter(None, [sentence, self.rates]))

    @cached_property
    def totals(self) -> dict[int, list[float]]:
        """The seconds of each of `KINDS`, of each rank."""
        return {rank: _totals(spans) for rank, spans in self.spans.items()}

    @property
    def waiting(self) -> float:
        """The part of all ranks' time that was waiting for others, 0 to 1."""
        whole = sum(map(sum, self.totals.values()))
        return sum(each[1] for each in self.totals.values()) / whole if whole > 0 else 0.0


@dataclass(frozen=True)
class Past:
    """What is kept of a cell that has ended.

    Attributes:
        cell: the notebook's In[number]; 0 where it was no cell, but a call from Python.
        seconds: how long it took.
        waiting: the part of all ranks' time that was waiting for others, 0 to 1.
        late: the rank that the others waited for, if it was long.
    """

    cell: int
    seconds: float
    waiting: float
    late: int | None = None


def _totals(spans: Sequence[Span]) -> list[float]:
    found = dict.fromkeys(KINDS, 0.0)
    for span in spans:
        found[span.kind if span.kind in found else KINDS[0]] += span.end - span.start
    return list(found.values())


def abridged(spans: Sequence[Span], most: int) -> Sequence[Span]:
    """Return at most ``most`` stretches in place of many: each equal step of time gets the kind that mostly fills it.

    A stretch keeps its name if it is of one call only.
    """
    if len(spans) <= most:
        return spans
    start, end = spans[0].start, spans[-1].end
    step = (end - start) / most or 1.0
    shares = [[0.0] * len(KINDS) for _ in range(most)]
    whose: list[dict[int, Span | None]] = [{} for _ in range(most)]
    for span in spans:
        at, last = (min(most - 1, int((edge - start) / step)) for edge in (span.start, span.end))
        for index in range(at, last + 1):
            inside = min(span.end, start + (index + 1) * step) - max(span.start, start + index * step)
            which = KINDS.index(span.kind) if span.kind in KINDS else 0
            shares[index][which] += inside
            first = whose[index].setdefault(which, span)
            whose[index][which] = span if first is not None and _same_call(first, span) else None
    made: list[Span] = []
    for index, share in enumerate(shares):
        largest, until = share.index(max(share)), start + (index + 1) * step
        span, kind = whose[index].get(largest) or Span("", 0.0, 0.0), KINDS[largest]
        before = made.pop() if made and made[-1].kind == kind else None
        if before is not None and not _same_call(before, span):
            span = Span("", 0.0, 0.0)
        made.append(
            Span(kind, before.start if before else start + index * step, until, span.name, span.line, span.nbytes)
        )
    return made


def _same_call(one: Span, other: Span) -> bool:
    return (one.name, one.line, one.nbytes) == (other.name, other.line, other.nbytes)
