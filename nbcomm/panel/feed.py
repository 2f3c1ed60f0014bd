"""What the browser is told, and when: keyframes with everything, and between them what has changed.

Pure: whoever calls brings the time, and sends what comes out. All of it is made for a small bill: 64 ranks at ten
messages a second may cost one percent of a core.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from ..analysis.story import KINDS, Ladder, Past, Timeline, abridged
from .words import RankView

INTERVAL = 0.1
"""Seconds between two messages to the browser, at least."""

KEYFRAME = 2.0
"""Seconds after which a message carries everything again; the browser takes it as the heartbeat."""

BARS = 8
"""A timeline shows as many ranks at most: those that differ most."""

_TIMELINE = 1.0  # seconds between two pictures of a running timeline; it is by far the largest of all
_RUNGS = 12  # columns of the ladder
_SPANS = 96  # stretches of one bar while its cell runs: finer ones cannot be told apart on the page
_SPANS_ENDED = 240  # the same when the cell has ended: then somebody may look more closely, and it is made only once
_ERROR = 1000  # characters of an error
_MEMORY_STEP = 2**20
_LETTERS = {"done": "d", "arrived": "a", "missing": "m", "other": "o", "failed": "f", "out": "-"}


class Feed:
    """The messages of one panel.

    Args:
        meta: what never changes (the world's id, title, backend, its buttons).
        ranks: the first state.
    """

    def __init__(self, meta: dict[str, Any], ranks: Sequence[RankView]) -> None:
        self._meta = meta
        self._sent_ranks: list[tuple[Any, ...]] = []
        self._sent_rows: list[tuple[Any, ...]] = []
        self._sent_headline: str | None = None
        self._sent_ladder: Ladder | None = None
        self._sent_timeline: Timeline | None = None
        self._sent_useful: list[str] | None = None
        self._sent_past: Sequence[Past] = ()
        self._packed: tuple[Timeline | None, list[Any] | None] | None = None
        self._version = 0
        self._last = self._last_keyframe = self._last_timeline = float("-inf")
        self.ladder: Ladder | None = None
        self.timeline: Timeline | None = None
        self.useful: list[str] | None = None
        self.past: Sequence[Past] = ()
        self.put(ranks, None)

    def put(  # noqa: PLR0913, PLR0917  # each is a part of the picture
        self,
        ranks: Sequence[RankView],
        headline: str | None,
        ladder: Ladder | None = None,
        timeline: Timeline | None = None,
        useful: list[str] | None = None,
        past: Sequence[Past] | None = None,
    ) -> None:
        """Take in a new state; only the newest one will be sent. No ladder, timeline or past: they are as they were."""
        self.useful = useful
        self.past = self.past if past is None else past
        self.views, self.headline = tuple(ranks), headline
        self.ladder = self.ladder if ladder is None else ladder
        self.timeline = self.timeline if timeline is None else timeline

    def wait(self, now: float) -> float:
        """Seconds until the next message may go; 0 or less is at once."""
        return self._last + INTERVAL - now

    def keyframe(self, wall: float) -> dict[str, Any]:
        """Everything, as of the newest state. ``wall`` is `time.time`; the browser counts on from it."""
        return {
            "kind": "snapshot",
            "version": self._version,
            "now": wall,
            "meta": self._meta,
            "headline": self.headline,
            "useful": self.useful,
            "ranks": list(map(_fixed, self.views)),
            "rows": list(map(_row, self.views)),
            "ladder": packed_ladder(self.ladder),
            "timeline": self._packed_timeline(),
            "past": packed_past(self.past),
        }

    def take(self, now: float, wall: float) -> dict[str, Any] | None:
        """The next message, or None when the browser knows all of it and no heartbeat is due.

        Args:
            now: `time.monotonic`; the caller has seen to it that `wait` is over.
            wall: `time.time`.
        """
        ranks, rows = list(map(_fixed, self.views)), list(map(_row, self.views))
        keyframe = now - self._last_keyframe >= KEYFRAME or ranks != self._sent_ranks
        news = {} if keyframe else self._news(rows, now)
        if not keyframe and not news:
            return None
        self._version += 1
        self._last = now
        if keyframe or "timeline" in news:
            self._sent_timeline, self._last_timeline = self.timeline, now
        self._sent_ranks, self._sent_rows = ranks, rows
        self._sent_headline, self._sent_ladder, self._sent_useful = self.headline, self.ladder, self.useful
        self._sent_past = self.past
        if keyframe:
            self._last_keyframe = now
            return self.keyframe(wall)
        return {"kind": "delta", "version": self._version, "now": wall, "headline": self.headline, "rows": {}, **news}

    def _news(self, rows: Sequence[tuple[Any, ...]], now: float) -> dict[str, Any]:
        """What has changed since the last message; rows are whole, so a lost one is made good by the next keyframe."""
        news: dict[str, Any] = {}
        # Where a rank has come or gone it is a keyframe, so the two lists are of one length here.
        old = zip(rows, self._sent_rows, strict=True)
        if changed := {str(index): new for index, (new, sent) in enumerate(old) if new != sent}:
            news["rows"] = changed
        if self.headline != self._sent_headline:
            news["headline"] = self.headline
        if self.useful != self._sent_useful:
            news["useful"] = self.useful
        if self.ladder != self._sent_ladder:
            news["ladder"] = packed_ladder(self.ladder)
        if self.past != self._sent_past:
            news["past"] = packed_past(self.past)
        if self._timeline_is_due(now):
            news["timeline"] = self._packed_timeline()
        return news

    def _packed_timeline(self) -> list[Any] | None:
        """The timeline as it travels; of a cell that has ended each keyframe has the same again."""
        if self._packed is None or self._packed[0] is not self.timeline:
            self._packed = self.timeline, packed_timeline(self.timeline)
        return self._packed[1]

    def _timeline_is_due(self, now: float) -> bool:
        """A running one moves all the time, and is sent now and then; another cell's, or its end, at once."""
        new, sent = self.timeline, self._sent_timeline
        if new is sent or new is None:
            return False
        if sent is not None and new.running and (new.cell, new.running) == (sent.cell, sent.running):
            return now - self._last_timeline >= _TIMELINE
        return new != sent


_fixed = operator.attrgetter("rank", "local_rank", "node_rank", "host", "device", "pid", "pss")
"""What a rank keeps as long as its process lives."""


def _row(view: RankView) -> tuple[Any, ...]:
    """What moves. Memory in whole mebibytes: it trembles by a few pages all the time, and each would be news."""
    memory, device_memory = (size // _MEMORY_STEP * _MEMORY_STEP for size in (view.memory, view.device_memory))
    return view.state, view.since, memory, device_memory, view.device_total, view.note, view.error[:_ERROR]


def packed_ladder(ladder: Ladder | None) -> list[Any] | None:
    """The ladder as it travels: ``[group, [[seq, name, line, "ddam"], …]]``, a letter for each rank's mark."""
    if ladder is None:
        return None
    rungs = ladder.rungs[-_RUNGS:]
    return [
        ladder.group,
        [[rung.seq, rung.name, rung.line, "".join(_LETTERS.get(mark, "-") for mark in rung.marks)] for rung in rungs],
    ]


def packed_timeline(timeline: Timeline | None) -> list[Any] | None:
    """The timeline as it travels: ``[cell, seconds, running, sentence, ranks, bars, waiting, calls]``.

    A bar is ``[rank, totals, start, stretches]``: the seconds of each of `KINDS`, when the first stretch began, and
    the stretches one after the other as kind, end, and a place in ``calls``: ``[name, bytes, line]``; -1 is none.
    """
    if timeline is None:
        return None
    totals = timeline.totals
    bars = []
    calls: dict[tuple[str, int, str], int] = {}
    most = _SPANS if timeline.running else _SPANS_ENDED
    for rank in most_different(totals):
        spans = abridged(timeline.spans[rank], most)
        start = round(spans[0].start, 5) if spans else 0.0
        flat: list[Any] = []
        for span in spans:
            call = calls.setdefault((span.name, span.nbytes, span.line), len(calls)) if span.name else -1
            flat += (_KIND.get(span.kind, 0), round(span.end, 5), call)
        bars.append([rank, [round(total, 5) for total in totals[rank]], start, flat])
    return [
        timeline.cell,
        round(timeline.seconds, 5),
        timeline.running,
        timeline.sentence,
        len(totals),
        bars,
        round(timeline.waiting, 4),
        list(map(list, calls)),
    ]


def packed_past(past: Sequence[Past]) -> list[list[Any]]:
    """The last cells as they travel: ``[cell, seconds, waiting, late]``, oldest first; -1 where nobody was late."""
    return [
        [each.cell, round(each.seconds, 4), round(each.waiting, 4), -1 if each.late is None else each.late]
        for each in past
    ]


_KIND = {kind: index for index, kind in enumerate(KINDS)}


def most_different(totals: dict[int, list[float]]) -> list[int]:
    """The ranks worth a bar, ascending: all, or those that waited least and those that waited longest.

    Whoever the others wait for waits least itself.
    """
    if len(totals) <= BARS:
        return sorted(totals)
    by_wait = sorted(totals, key=lambda rank: (totals[rank][1], rank))
    return sorted(by_wait[: BARS // 2] + by_wait[-BARS // 2 :])
