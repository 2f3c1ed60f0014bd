"""The charts of a cell that ran with ``--chart step``, ``--chart pipeline`` or ``--chart bytes``, from its record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..analysis import overlap, schedule
from ..analysis.matching import matched_calls
from ..analysis.timeline import timeline
from ..analysis.traffic import traffic
from ..durations import short
from ..protocol import CallRecord, Done
from ..rank_spec import named
from ..short_repr import amount
from .bars import Bars, Schedule
from .chart import Chart
from .grid import Box, Grid

SPENT = ("compute", "compute during transfer", "transfer", "waiting")
"""The parts of a rank's time, as `overlap.Spent` has them."""

_Steps = Mapping[int, Sequence[CallRecord]]
_Windows = Mapping[int, tuple[float, float]]


def chart(kind: str, answers: Mapping[int, Done]) -> Chart | str:
    """Return the chart of a cell that was traced, or why there is none.

    Args:
        kind: one of `KINDS`.
        answers: what the ranks have reported at its end; a rank that died has reported nothing.
    """
    told = {rank: done for rank, done in sorted(answers.items()) if done.began}
    steps = {rank: done.steps for rank, done in told.items()}
    if not any(steps.values()):
        return "This cell made no collective and sent no message, so there is nothing to draw."
    windows = {rank: (done.began, done.began + done.seconds) for rank, done in told.items()}
    drawn = KINDS[kind](steps, windows)
    cut = [rank for rank, done in told.items() if done.dropped]
    if cut and isinstance(drawn, Chart):
        drawn.notes = [*drawn.notes, f"The first calls of {named(cut)} are not kept, and not counted."]
    return drawn


def _step(steps: _Steps, windows: _Windows) -> Chart | str:
    met = matched_calls(steps)
    line, zero = timeline(0, windows, met, running=False), min(began for began, _ in windows.values())
    parts = overlap.spent(line, met, zero)
    share = overlap.overlap(parts)
    hidden = "" if share is None else f"Overlap: {share:.0%} of the transfer was hidden behind compute."
    return Bars(
        "Where the time went",
        SPENT,
        {f"rank {rank}": [each.work, each.hidden, each.exposed, each.waiting] for rank, each in parts.items()},
        unit=short,
        notes=[hidden, line.sentence],
    )


def _pipeline(steps: _Steps, windows: _Windows) -> Chart | str:
    works = schedule.schedule(steps, windows)
    if sum(bool(own) for own in works.values()) < 2:
        return "This cell sent nothing from rank to rank between which they work, so there is no pipeline to draw."
    kinds = [kind for kind in schedule.KINDS if any(each.kind == kind for own in works.values() for each in own)]
    micro = max(sum(each.kind != schedule.BACKWARD for each in own) for own in works.values())
    back = any(each.kind != schedule.FORWARD for own in works.values() for each in own)
    due = schedule.expected(len(works), micro)
    law = f"; (p − 1) / (m + p − 1) is {due:.0%} for {len(works)} stages and {micro} micro-batches" * back
    return Schedule(
        "The pipeline's schedule", kinds, works, notes=[f"Idle {schedule.idle(works):.0%} of the time{law}."]
    )


def _bytes(steps: _Steps, _windows: _Windows) -> Chart | str:
    found = traffic(steps)
    ranks = sorted({*steps, *(rank for own in steps.values() for step in own for rank in step.members)})
    if not found:
        return "No rank gave data to another one in this cell, so there is nothing to draw."
    most = max(found.values())
    boxes = {
        str(src): [
            Box("" if src == dst else amount(size), (src,), size / most)
            for dst in ranks
            for size in [found.get((src, dst), 0)]
        ]
        for src in ranks
    }
    whole = amount(sum(found.values()))
    note = "What a rank gives each other one, whatever ways it takes; a reduction counts as its two halves."
    return Grid(
        f"Bytes from rank to rank, {whole} in all", ("to rank", "from rank"), [*map(str, ranks)], boxes, notes=[note]
    )


KINDS: dict[str, Callable[[_Steps, _Windows], Chart | str]] = {"step": _step, "pipeline": _pipeline, "bytes": _bytes}
"""What can be drawn of a cell's record, beside its collectives."""
