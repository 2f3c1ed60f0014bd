"""What the panel costs the notebook's kernel."""

from __future__ import annotations

import functools
import json
import statistics
import time

from nbcomm.analysis.collective_log import CollectiveLog
from nbcomm.analysis.story import Ladder, Rung, Span, Timeline
from nbcomm.panel import RankView
from nbcomm.panel.feed import Feed
from nbcomm.protocol import CallRecord, rank_lists

from .rows import Row, seconds

RANKS, RUNGS, SPANS, HEARD = 64, 12, 60, 256


def measure(rounds: int, *, full: bool) -> list[Row]:  # noqa: ARG001 - as the others
    """64 ranks in a loop of collectives, at 10 updates a second: made and encoded, not sent.

    Each update has other memory, a ladder that has moved on and a longer timeline. Some updates are a keyframe and some
    carry the timeline: what counts is the mean, over whole seconds.
    """
    feed = Feed({"title": "bench", "backend": "gloo"}, _views(0))
    steps = 20 * max(1, rounds // 5)
    told = [(_views(step), _ladder(step), _timeline(step)) for step in range(1, steps + 1)]

    def update(step: int) -> None:
        views, ladder, timeline = told[step]
        feed.put(views, None, ladder=ladder, timeline=timeline)
        json.dumps(feed.take(step / 10, time.time()))

    mean = statistics.fmean(seconds(functools.partial(update, step)) for step in range(steps))
    return [
        Row(
            f"panel, {RANKS} ranks at 10 Hz, ladder and timeline / 1 % of a core",
            f"{mean * 1e3:.2f} ms an update",
            mean * 10 / 0.01,
            1.0,
        ),
        Row(
            f"what {RANKS} ranks did together, {HEARD} collectives",
            f"{statistics.median(_stories(rounds)) * 1e3:.0f} ms",
        ),
    ]


def _stories(rounds: int) -> list[float]:
    """How long it takes to pair the steps of a running cell and to make its ladder and timeline, several times."""
    collective_log = CollectiveLog()
    collective_log.begin(5, range(RANKS))
    now, ranks = time.time(), rank_lists.written(range(RANKS))
    for rank in range(RANKS):
        for seq in range(1, HEARD + 1):
            began = now + seq / 100 + rank / 10_000
            call = CallRecord("all_reduce", "collective", "world", ranks, seq, seq, began, now + seq / 100 + 0.008)
            collective_log.hear(rank, [call])
    return [seconds(lambda: collective_log.story(RANKS)) for _ in range(max(1, rounds // 5))]


def _views(step: int) -> list[RankView]:
    memory = (300 + step) << 20
    return [
        RankView(rank, rank % 8, rank // 8, "host", "cpu", 1000 + rank, "running", 0.0, memory) for rank in range(RANKS)
    ]


def _ladder(step: int) -> Ladder:
    """The last collectives; in the newest of them one rank is missing."""
    done, newest = ("done",) * RANKS, (*("arrived",) * (RANKS - 1), "missing")
    return Ladder(
        rungs=tuple(
            Rung(step + at, "all_reduce", "line 3: all_reduce(x)", newest if at == RUNGS - 1 else done)
            for at in range(RUNGS)
        )
    )


def _timeline(step: int) -> Timeline:
    """A cell that has been running for ``step`` tenths of a second."""
    width = step / 10 / SPANS
    spans = tuple(
        Span("compute" if at % 2 else "waiting", at * width, (at + 1) * width, "" if at % 2 else f"all_reduce #{at}")
        for at in range(SPANS)
    )
    return Timeline(5, step / 10, running=True, spans=dict.fromkeys(range(RANKS), spans), sentence="rank 2 came last")
