"""The messages to the browser: keyframes with everything, and between them the changes.

These are pure functions: the caller passes the time, and sends the messages. They are made to be cheap: 64 ranks at
ten messages a second may cost one percent of a core.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..analysis.story import KINDS, Ladder, Past, Timeline, abridged
from .words import JobView, RankView

INTERVAL = 0.1
"""The least seconds between two messages to the browser."""

KEYFRAME = 2.0
"""Seconds after which a message carries everything again; it is also the browser's heartbeat."""

BARS = 8
"""The most ranks that a timeline shows: those that differ most."""

_TIMELINE = 1.0  # seconds between two messages with a running timeline, which is by far the largest part
_RUNGS = 12  # columns of the ladder
_SPANS = 96  # stretches of one bar while its cell runs: finer ones cannot be distinguished on the page
_SPANS_ENDED = 240  # the same after the cell's end: a user may zoom in then, and the bar is made only once
_ERROR = 1000  # characters of an error
_MEMORY_STEP = 2**20
_LETTERS = {"done": "d", "arrived": "a", "missing": "m", "other": "o", "failed": "f", "out": "-"}


class Picture(NamedTuple):
    """What a panel shows; see `Panel.update`."""

    views: Sequence[RankView]
    headline: str | None = None
    useful: list[str] | None = None
    ladder: Ladder | None = None
    timeline: Timeline | None = None
    past: Sequence[Past] = ()
    job: JobView | None = None


class Feed:
    """The messages of one panel.

    Args:
        meta: what never changes (the world's id, title, backend, its buttons).
        ranks: the first state of the ranks.

    Attributes:
        picture: what the panel is to show.
    """

    def __init__(self, meta: dict[str, Any], ranks: Sequence[RankView]) -> None:
        self._meta = meta
        self._sent_ranks: list[tuple[Any, ...]] = []
        self._sent_rows: list[tuple[Any, ...]] = []
        self._sent = Picture(())
        self._sent_timeline: Timeline | None = None
        self._packed: tuple[Timeline | None, list[Any] | None] | None = None
        self._version = 0
        self._last = self._last_keyframe = self._last_timeline = float("-inf")
        self.picture = Picture(tuple(ranks))

    def put(
        self, ranks: Sequence[RankView], headline: str | None, useful: list[str] | None = None, **others: Any
    ) -> None:
        """Set a new state; only the newest is sent. Of the other fields of a picture, None keeps the previous value."""
        changed = {name: value for name, value in others.items() if value is not None}
        self.picture = self.picture._replace(views=tuple(ranks), headline=headline, useful=useful, **changed)

    def wait(self, now: float) -> float:
        """Return the seconds until the next message may be sent; 0 or less means at once."""
        return self._last + INTERVAL - now

    def keyframe(self, wall: float) -> dict[str, Any]:
        """Return a message with the whole newest state; ``wall`` is `time.time`, from which the browser counts on."""
        return {
            "kind": "snapshot",
            "version": self._version,
            "now": wall,
            "meta": self._meta,
            "ranks": list(map(_fixed, self.picture.views)),
            "rows": list(map(_row, self.picture.views)),
            "timeline": self._packed_timeline(),
            **{name: packed(getattr(self.picture, name)) for name, packed in _PACKED.items()},
        }

    def take(self, now: float, wall: float) -> dict[str, Any] | None:
        """Return the next message, or None if nothing has changed and no heartbeat is due.

        Args:
            now: `time.monotonic`; the caller must let the time of `wait` pass before.
            wall: `time.time`.
        """
        ranks, rows = list(map(_fixed, self.picture.views)), list(map(_row, self.picture.views))
        keyframe = now - self._last_keyframe >= KEYFRAME or ranks != self._sent_ranks
        news = {} if keyframe else self._news(rows, now)
        if not keyframe and not news:
            return None
        self._version += 1
        self._last = now
        if keyframe or "timeline" in news:
            self._sent_timeline, self._last_timeline = self.picture.timeline, now
        self._sent_ranks, self._sent_rows, self._sent = ranks, rows, self.picture
        if keyframe:
            self._last_keyframe = now
            return self.keyframe(wall)
        return {
            "kind": "delta",
            "version": self._version,
            "now": wall,
            "headline": self.picture.headline,
            "rows": {},
            **news,
        }

    def _news(self, rows: Sequence[tuple[Any, ...]], now: float) -> dict[str, Any]:
        """Return the changes since the last message; rows are whole, so the next keyframe repairs a lost one."""
        news: dict[str, Any] = {}
        # A change of the ranks gives a keyframe, so the two lists have the same length here.
        old = zip(rows, self._sent_rows, strict=True)
        if changed := {str(index): new for index, (new, sent) in enumerate(old) if new != sent}:
            news["rows"] = changed
        for name, packed in _PACKED.items():
            if (value := getattr(self.picture, name)) != getattr(self._sent, name):
                news[name] = packed(value)
        if self._timeline_is_due(now):
            news["timeline"] = self._packed_timeline()
        return news

    def _packed_timeline(self) -> list[Any] | None:
        """Return the packed timeline; it is kept, because each keyframe repeats that of an ended cell."""
        timeline = self.picture.timeline
        if self._packed is None or self._packed[0] is not timeline:
            self._packed = timeline, packed_timeline(timeline)
        return self._packed[1]

    def _timeline_is_due(self, now: float) -> bool:
        """Tell whether to send the timeline: of a running cell now and then, of another cell or at the end at once."""
        new, sent = self.picture.timeline, self._sent_timeline
        if new is sent or new is None:
            return False
        if sent is not None and new.running and (new.cell, new.running) == (sent.cell, sent.running):
            return now - self._last_timeline >= _TIMELINE
        return new != sent


_fixed = operator.attrgetter("rank", "local_rank", "node_rank", "host", "device", "pid", "pss")
"""The fields of a rank that do not change while its process lives."""


def _row(view: RankView) -> tuple[Any, ...]:
    """Return a rank's changing fields, memory in whole mebibytes: it varies by a few pages all the time."""
    memory, device_memory = (size // _MEMORY_STEP * _MEMORY_STEP for size in (view.memory, view.device_memory))
    figures = memory, device_memory, view.device_total
    row = (view.state, view.since, *figures, view.note, view.error[:_ERROR])
    return (*row, view.on_gpu) if view.on_gpu else row


def packed_ladder(ladder: Ladder | None) -> list[Any] | None:
    """Pack the ladder: ``[group, [[seq, name, line, "ddam"], …]]``, with a letter for each rank's mark."""
    if ladder is None:
        return None
    rungs = ladder.rungs[-_RUNGS:]
    return [
        ladder.group,
        [[rung.seq, rung.name, rung.line, "".join(_LETTERS.get(mark, "-") for mark in rung.marks)] for rung in rungs],
    ]


def packed_timeline(timeline: Timeline | None) -> list[Any] | None:
    """Pack the timeline: ``[cell, seconds, running, sentence, ranks, bars, waiting, calls]``.

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
        timeline.said,
        len(totals),
        bars,
        round(timeline.waiting, 4),
        list(map(list, calls)),
    ]


def packed_past(past: Sequence[Past]) -> list[list[Any]]:
    """Pack the last cells: ``[cell, seconds, waiting, late]``, oldest first; late is -1 if no rank was late."""
    return [
        [each.cell, round(each.seconds, 4), round(each.waiting, 4), -1 if each.late is None else each.late]
        for each in past
    ]


def packed_job(job: JobView | None) -> list[Any] | None:
    """Pack the job: ``[name, ends]``. The page counts down by its own clock, so nothing is sent for that."""
    return None if job is None else list(job)


_NOTHING = 0.0005
"""Seconds: a shorter time is shown as 0."""

_KIND = {kind: index for index, kind in enumerate(KINDS)}


def most_different(totals: dict[int, list[float]]) -> list[int]:
    """Return the ranks that get a bar, ascending: all, or those that waited least and those that waited longest.

    The rank that the others wait for waits least itself. Where no rank waited, they are the quickest and the slowest.
    """
    if len(totals) <= BARS:
        return sorted(totals)
    waited = any(each[1] >= _NOTHING for each in totals.values())
    ordered = sorted(totals, key=lambda rank: (totals[rank][1] if waited else sum(totals[rank]), rank))
    return sorted(ordered[: BARS // 2] + ordered[-BARS // 2 :])


_PACKED: dict[str, Callable[[Any], Any]] = {
    "headline": lambda headline: headline,
    "useful": lambda useful: useful,
    "ladder": packed_ladder,
    "past": packed_past,
    "job": packed_job,
}
"""The fields of a picture that go to the page as they are when they have changed, and how each is packed."""
