"""The panel's words: a rank as the panel shows it, and sentences about one rank or all.

``panel.js`` has the same sentences and units in JavaScript; ``tests/panel/cases.json`` checks that both agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..analysis.story import Ladder, Past, Rung, Timeline
from ..durations import duration
from ..rank_spec import fold, others_stopped, said_of
from ..short_repr import shortened

STATES = ("starting", "idle", "running", "waiting", "failed", "interrupted", "dead")

# The culprit comes first in the sentence.
_URGENCY = ("dead", "failed", "interrupted", "waiting", "running", "starting")

STOPPED_BECAUSE = "was stopped because "
"""Begins the note of a rank that has not failed by itself: "was stopped because rank 5 died"."""

_WHO, _NOTE = 24, 80  # characters in the sentence
_OFTEN = 2  # in this many cells, a wait for the same rank is no accident
_SLOW = 5  # seconds after which a wait is longer than that of every collective


@dataclass(frozen=True)
class RankView:
    """One rank as the panel shows it.

    Attributes:
        rank: global rank.
        local_rank: number of the rank on its node.
        node_rank: number of its node, from 0.
        host: name of the machine.
        device: as for `torch.device`, ``"cpu"`` or ``"cuda:1"``.
        pid: process id on its host.
        state: one of `STATES`.
        since: when it entered that state, in seconds of `time.time`.
        memory: memory of the process in bytes; 0 = unknown.
        device_memory: memory used on its device in bytes.
        device_total: memory of its device in bytes; 0 = unknown.
        note: one short line about the state ("killed by SIGKILL"), or nothing.
        error: the error that ended its last cell in one line ("ValueError: …"); kept until a cell succeeds.
        on_gpu: what else is known of its device, in words: see `on_gpu`.
        pss: whether its memory is proportional (PSS), with its share of pages that several processes share; else it is
            resident (RSS).
    """

    rank: int
    local_rank: int = 0
    node_rank: int = 0
    host: str = ""
    device: str = "cpu"
    pid: int = 0
    state: str = "starting"
    since: float = 0.0
    memory: int = 0
    device_memory: int = 0
    device_total: int = 0
    note: str = ""
    error: str = ""
    pss: bool = False
    on_gpu: str = ""


def on_gpu(name: str, allocated: int, reserved: int, sharers: Sequence[int]) -> str:
    """Tell of a rank's GPU what its memory does not.

    Args:
        name: of the GPU; empty if nothing is known.
        allocated: bytes that this rank's tensors have.
        reserved: bytes that torch keeps for them.
        sharers: the other ranks on it.

    >>> on_gpu("NVIDIA H200", 3 << 30, 4 << 30, [1, 2])
    'torch 3.0 GiB, reserved 4.0 GiB · NVIDIA H200, shared with ranks 1-2'
    """
    if not name:
        return ""
    figures = f"torch {amount(allocated)}, reserved {amount(reserved)}"
    return f"{figures} · {name}{f', shared with {named(sharers)}' if sharers else ''}"


class JobView(NamedTuple):
    """The scheduler's job that a world is in, as the panel shows it.

    Attributes:
        name: "Slurm job 12".
        ends: when its time is over, in seconds of `time.time`; None = unknown.
    """

    name: str
    ends: float | None


def remaining(seconds: float) -> str:
    """Write how much time is left: rounded minutes, and seconds only at the end.

    >>> remaining(88.2), remaining(41 * 60), remaining(3 * 3600 + 300)
    ('89 s', '41 min', '3 h 5 min')
    """
    whole = math.ceil(seconds)  # so that 0 s is never left
    if whole < 90:
        return f"{whole} s"
    hours, minutes = divmod(int(whole / 60 + 0.5), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def brief(seconds: float) -> str:
    """Write a stretch of a cell's time, more exactly than `duration`.

    >>> brief(0.0123), brief(2.14), brief(75)
    ('12 ms', '2.1 s', '1 min 15 s')
    """
    if seconds < 0.0005:
        return "0 s"
    if seconds < 0.9995:
        return f"{int(seconds * 1000 + 0.5)} ms"
    if seconds < 9.95:
        tenths = int(seconds * 10 + 0.5)
        return f"{tenths // 10}.{tenths % 10} s"
    return duration(seconds + 0.5)


def amount(size: int) -> str:
    """Write bytes with at least two digits; unknown (0) is a dash.

    >>> amount(0), amount(734_003_200), amount(5 << 30)
    ('–', '700 MiB', '5.0 GiB')
    """
    if size <= 0:
        return "–"
    mib = size / 2**20
    if mib < 999.5:
        return f"{max(1, int(mib + 0.5))} MiB"
    # int(x + 0.5) rather than round(): JavaScript rounds halves up, and both must write the same.
    tenths = int(mib / 1024 * 10 + 0.5)
    return f"{tenths // 10}.{tenths % 10} GiB" if tenths < 1000 else f"{int(mib / 1024 + 0.5)} GiB"


def memory(view: RankView) -> str:
    """Write a rank's memory, and its kind.

    >>> memory(RankView(0, memory=60 << 20, pss=True)), memory(RankView(0, memory=200 << 20)), memory(RankView(0))
    ('60 MiB PSS', '200 MiB RSS', '–')
    """
    return f"{amount(view.memory)} {'PSS' if view.pss else 'RSS'}" if view.memory > 0 else amount(0)


def sentence(ranks: Sequence[RankView], now: float) -> str:
    """Say in one line what the ranks are doing, the culprits first.

    >>> sentence([RankView(0, state="running", since=5.0), RankView(1, state="idle")], now=17.0)
    'running for 12 s on rank 0'
    """
    parts = []
    culprits = sum(view.state in ("dead", "failed") for view in ranks)
    for state in _URGENCY:
        some = [view for view in ranks if view.state == state]
        stopped = [view for view in some if state == "interrupted" and view.note.startswith(STOPPED_BECAUSE)]
        if stopped and culprits:
            parts.append(others_stopped(len(stopped), culprits))
            some = [view for view in some if view not in stopped]
        parts += [_phrase(state, alike, now) for alike in _in_one_phrase(state, some)]
    return " · ".join(parts) or ("all ranks idle" if len(ranks) > 1 else "the rank is idle")


def _in_one_phrase(state: str, some: Sequence[RankView]) -> Iterable[Sequence[RankView]]:
    """Put the ranks of a state together: of the dead only those that ended alike, for each has its own cause."""
    alike: dict[str, list[RankView]] = {}
    for view in some:
        alike.setdefault(_note(view) if state == "dead" else "", []).append(view)
    return alike.values()


def _phrase(state: str, some: Sequence[RankView], now: float) -> str:
    who = named(view.rank for view in some)
    since = duration(now - min(view.since for view in some))
    notes = {_note(view) for view in some}
    note = notes.pop() if len(notes) == 1 else ""
    note = shortened(note, _NOTE)
    if state == "dead":
        return said_of([view.rank for view in some], note or "died", named)
    note = f" ({note})" if note else ""
    if state in ("failed", "interrupted"):
        return f"{who} {state}{note}"
    if state == "waiting":
        return f"{who} waiting for {since}{note}"
    return f"{state} for {since} on {who}{note}"


def _note(view: RankView) -> str:
    """Return a rank's note; if it failed and has none, its error, which else may be that of an earlier cell."""
    return " ".join((view.note or (view.error if view.state == "failed" else "")).split())


def named(ranks: Iterable[int]) -> str:
    """Name ranks for a sentence: ``"rank 3"``, ``"ranks 0-2"``.

    If the ranks make a long list, such as every third of 64, only say how many; the cards and tiles show which.
    """
    some = list(ranks)
    folded = fold(some)
    return f"rank{'s' if len(some) > 1 else ''} {folded}" if len(folded) <= _WHO else _ranks(len(some))


def size_line(ranks: Sequence[RankView], backend: str, job: JobView | None, now: float) -> str:
    """Say what the world runs on: ``"1 node · gloo"``. Its title gives the number of ranks."""
    nodes = len({view.node_rank for view in ranks})
    size = f"{nodes} node{'s' if nodes > 1 else ''}"
    return " · ".join(filter(None, [size, backend, job_line(job, now) if job is not None else ""]))


def job_line(job: JobView, now: float) -> str:
    """Name a job, and say how much of its time is left.

    >>> job_line(JobView("Slurm job 12", 2460.0), now=0.0), job_line(JobView("Slurm job 12", None), now=0.0)
    ('Slurm job 12, 41 min left', 'Slurm job 12')
    """
    if job.ends is None:
        return job.name
    left = job.ends - now
    return f"{job.name}, {f'{remaining(left)} left' if left > 0 else 'time is over'}"


def troubled_rung(ladder: Ladder | None) -> Rung | None:
    """Return the newest collective in which a rank failed, or which some ranks have reached and others have not."""
    for rung in reversed(ladder.rungs if ladder is not None else ()):
        marks = set(rung.marks)
        if "failed" in marks or ("arrived" in marks and marks & {"missing", "other"}):
            return rung
    return None


def absence(rung: Rung, *, several: bool = False) -> str:
    """Say which collective a missing rank did not reach; while others wait there it may still arrive.

    >>> absence(Rung(2, "all_reduce", "", ("failed", "missing")))
    'did not reach all_reduce #2'
    """
    verb = f"{'have' if several else 'has'} not reached" if "arrived" in rung.marks else "did not reach"
    return f"{verb} {rung.name} #{rung.seq}"


def blames(ranks: Sequence[RankView], ladder: Ladder | None, now: float) -> dict[int, str]:
    """Return the ranks that the others wait for, or waited for when the cell ended, with what each did not reach.

    Only a long wait counts, because every collective has a short one.
    """
    rung = troubled_rung(ladder)
    if rung is None or not any(_bears_out(view, rung, now) for view in ranks):
        return {}
    return {rank: absence(rung) for rank, mark in enumerate(rung.marks) if mark == "missing"}


def _bears_out(view: RankView, rung: Rung, now: float) -> bool:
    """Tell whether a rank's present state fits its mark in a collective; after a later cell it does not."""
    mark = rung.marks[view.rank] if view.rank < len(rung.marks) else "out"
    slow = view.state == "waiting" and now - view.since >= _SLOW
    return (mark == "arrived" and slow) or (mark == "failed" and view.state == "failed")


def ladder_line(ladder: Ladder | None) -> str:
    """Say what is wrong in a ladder, the culprits first; return an empty text if nothing is.

    >>> ladder_line(Ladder(rungs=(Rung(12, "all_reduce", "", ("arrived", "arrived", "missing")),)))
    'rank 2 has not reached all_reduce #12; ranks 0-1 wait in it'
    """
    rung = troubled_rung(ladder)
    if rung is None:
        return ""
    name = f"{rung.name} #{rung.seq}"
    parts: list[str] = []
    for mark, one, several in _SAID:
        some = [rank for rank, its in enumerate(rung.marks) if its == mark]
        if some and mark == "missing":
            parts.append(f"{named(some)} {absence(rung, several=len(some) > 1)}")
        elif some and mark == "failed" and "missing" in rung.marks:  # not their fault
            parts.append(said_of(some, "was stopped in it", named))
        elif some:
            said = f"{named(some)} {several if len(some) > 1 else one} {name if not parts else 'it'}"
            parts.append(said.removesuffix(" than it"))
    return "; ".join(parts)


_SAID = (
    ("missing", "", ""),
    ("other", "is in another collective than", "are in another collective than"),
    ("failed", "failed in", "failed in"),
    ("arrived", "waits in", "wait in"),
)


def took(timeline: Timeline) -> str:
    """Say how long a cell took and how the time was spent, in one line.

    >>> took(Timeline(4, 2.14, running=False, spans={}))
    'took 2.1 s'
    """
    share = int(timeline.waiting * 100 + 0.5)
    waited = f"{share} % of it waiting for other ranks" if share else ""
    return " · ".join(filter(None, [f"took {brief(timeline.seconds)}", waited, timeline.said]))


def past_line(past: Sequence[Past]) -> str:
    """Name the rank that the others waited for in several cells; return an empty text if there is none.

    >>> past_line([Past(cell, 2.0, 0.4, 1) for cell in range(3)])
    'the others waited for rank 1 in 3 of the last 3 cells'
    """
    late = [each.late for each in past if each.late is not None]
    rank = max(late, key=lambda each: (late.count(each), -each), default=-1)
    count = late.count(rank)
    return f"the others waited for rank {rank} in {count} of the last {len(past)} cells" if count >= _OFTEN else ""


def _ranks(count: int) -> str:
    return f"{count} rank{'' if count == 1 else 's'}"
