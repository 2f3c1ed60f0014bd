"""The collectives of the running cell, or of the last one: for the panel, for pictures, for a trace."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from ..protocol import CallRecord, Done
from . import ladder, timeline
from .bandwidth import rates
from .matching import matched_calls
from .story import Ladder, Past, Timeline

_HEARD = 256
"""How many steps of a rank are kept while its cell runs: all are paired again several times a second."""

_CELLS = 20
"""How many ended cells are kept after the next one has begun."""

_Raw = tuple[int, dict[int, tuple[float, float]], dict[int, Sequence[CallRecord]], frozenset[int]]


class CollectiveLog:
    """The steps of a cell, collected while it runs, and replaced by what the ranks report at its end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._number = 0
        self._began: dict[int, float] = {}
        self._ended: dict[int, float] = {}
        self._heard: dict[int, dict[tuple[str, str, int, float], CallRecord]] = {}  # while it runs
        self._told_at_end: dict[int, Sequence[CallRecord]] = {}  # not read before somebody asks: most are never read
        self._cut: set[int] = set()  # ranks whose steps before the first one that is known are not kept
        self._running = False
        self._told: tuple[Ladder, Timeline] | None = None
        self._past: deque[Past] = deque(maxlen=_CELLS)
        self._unread: deque[_Raw | Past] = deque(maxlen=_CELLS)  # cells that have ended since `past` was called
        self._reading = threading.Lock()  # so that they stay in their order

    def begin(self, number: int, ranks: Iterable[int]) -> None:
        """Begin the log of a cell, which these ranks run."""
        now = time.time()
        with self._lock:
            self._number, self._running, self._told = number, True, None
            self._began = dict.fromkeys(ranks, now)
            self._ended, self._heard, self._told_at_end, self._cut = {}, {}, {}, set()

    def hear(self, rank: int, steps: Sequence[CallRecord]) -> None:
        """Add the last few steps of a rank that still runs the cell."""
        with self._lock:
            if not self._running or rank in self._ended or rank not in self._began:
                return
            own = self._heard.setdefault(rank, {})
            for step in steps:
                if step.began >= self._began[rank] - 1:  # not of the previous cell
                    own[step.name, step.group, step.first, step.began] = step
            while len(own) > _HEARD:
                del own[next(iter(own))]
                self._cut.add(rank)
            self._told = None

    def end(self, answers: Mapping[int, Done]) -> None:
        """End the cell, and replace its steps by those in the ranks' answers."""
        with self._lock:
            ran, self._running, self._told = self._running, False, None
            for rank, done in answers.items():
                if done.began:
                    self._began[rank], self._ended[rank] = done.began, done.began + done.seconds
                    self._told_at_end[rank] = done.steps
                    self._cut.discard(rank)
                    if done.dropped > 0:
                        self._cut.add(rank)
                else:  # it died: only the steps that it reported before are known
                    self._ended[rank] = time.time()
            if ran:
                windows = {rank: (began, self._ended.get(rank, began)) for rank, began in self._began.items()}
                self._unread.append((self._number, windows, self._steps(), frozenset(self._cut)))

    def forget(self) -> None:
        """Forget the last cell's steps, because ranks were replaced since."""
        with self._lock:
            self._began, self._ended, self._told = {}, {}, None
            self._heard, self._told_at_end, self._cut = {}, {}, set()

    def _steps(self) -> dict[int, Sequence[CallRecord]]:
        """Return the steps of each rank, as far as they are known. The caller holds the lock."""
        return {rank: [*own.values()] for rank, own in self._heard.items()} | self._told_at_end

    def past(self) -> tuple[Past, ...]:
        """Return the last cells that have ended, oldest first.

        They are analysed here, and not when they end: a trivial cell takes little longer than the analysis.
        """
        with self._reading:
            with self._lock:
                unread = list(self._unread)
                self._unread.clear()
            self._past.extend(each if isinstance(each, Past) else _read(each) for each in unread)
            return tuple(self._past)

    def story(
        self,
        size: int,
        nodes: Mapping[int, int] = MappingProxyType({}),
        died: Mapping[int, float] = MappingProxyType({}),
    ) -> tuple[Ladder, Timeline]:
        """Return the ladder and the timeline of the cell, for a world of ``size`` ranks on these nodes.

        Of ranks that ``died``, it is known when: a dead rank's part ends there, by `time.time`.
        """
        with self._lock:
            told, running = self._told, self._running
            raw = self._unread[-1] if self._unread and not running else None
            now = time.time()
            ended = {rank: min(self._ended.get(rank, now), died.get(rank, math.inf)) for rank in self._began}
            windows = {rank: (began, max(began, ended[rank])) for rank, began in self._began.items()}
            steps, cut = self._steps() if told is None else {}, frozenset(self._cut)
        if told is not None:
            return told
        met = matched_calls(steps)
        told = (
            ladder.ladder(size, met, ended=not running),
            replace(
                timeline.timeline(self._number, windows, met, running=running, since=_known_since(steps, cut)),
                rates=rates(met, nodes),
            ),
        )
        with self._lock:
            if not running and not self._running:
                self._told = told
                if raw is not None and self._unread and self._unread[-1] is raw:
                    self._unread[-1] = _kept(told[1])  # so that it is not made twice
        return told


def _read(raw: _Raw) -> Past:
    number, windows, steps, cut = raw
    met, since = matched_calls(steps), _known_since(steps, cut)
    return _kept(timeline.timeline(number, windows, met, running=False, since=since))


def _known_since(steps: Mapping[int, Sequence[CallRecord]], cut: Iterable[int]) -> float:
    """Return the time from which all steps of all ranks are known; ``cut`` are those whose first ones are not kept."""
    return max((steps[rank][0].began for rank in cut if steps.get(rank)), default=0.0)


def _kept(line: Timeline) -> Past:
    return Past(line.cell, line.seconds, line.waiting, line.late)
