"""The collectives of the running cell, or of the last one: for the panel, for pictures, for a trace."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from ..protocol import CallRecord, Done
from . import ladder, timeline
from .matching import MatchedCall, matched_calls
from .story import Ladder, Past, Timeline

_HEARD = 256
"""How many steps of a rank are kept while its cell runs: all are paired again several times a second."""

_CELLS = 20
"""How many ended cells are kept after the next one has begun."""

_Raw = tuple[int, dict[int, tuple[float, float]], dict[int, list[CallRecord]], float]


class CollectiveLog:
    """The steps of a cell, collected while it runs, and replaced by what the ranks report at its end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._number = 0
        self._began: dict[int, float] = {}
        self._ended: dict[int, float] = {}
        self._steps: dict[int, dict[tuple[str, str, int, float], CallRecord]] = {}
        self._since: dict[int, float] = {}  # steps of a rank before this time are not kept
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
            self._ended, self._steps, self._since = {}, {}, {}

    def hear(self, rank: int, steps: Sequence[CallRecord]) -> None:
        """Add the last few steps of a rank that still runs the cell."""
        with self._lock:
            if not self._running or rank in self._ended or rank not in self._began:
                return
            own = self._steps.setdefault(rank, {})
            for step in steps:
                if step.began >= self._began[rank] - 1:  # not of the previous cell
                    own[step.name, step.group, step.first, step.began] = step
            while len(own) > _HEARD:
                del own[next(iter(own))]
                self._since[rank] = next(iter(own.values())).began
            self._told = None

    def end(self, answers: Mapping[int, Done]) -> None:
        """End the cell, and replace its steps by those in the ranks' answers."""
        with self._lock:
            ran, self._running, self._told = self._running, False, None
            for rank, done in answers.items():
                if done.began:
                    self._began[rank], self._ended[rank] = done.began, done.began + done.seconds
                    own = {(s.name, s.group, s.first, s.began): s for s in done.steps}
                    self._steps[rank] = own
                    self._since[rank] = done.steps[0].began if done.dropped > 0 and done.steps else 0.0
                else:  # it died: only the steps that it reported before are known
                    self._ended[rank] = time.time()
            if ran:
                windows = {rank: (began, self._ended.get(rank, began)) for rank, began in self._began.items()}
                steps = {rank: list(own.values()) for rank, own in self._steps.items()}
                self._unread.append((self._number, windows, steps, self._known_since()))

    def forget(self) -> None:
        """Forget the last cell's steps, because ranks were replaced since."""
        with self._lock:
            self._began, self._ended, self._steps, self._since, self._told = {}, {}, {}, {}, None

    def _known_since(self) -> float:
        """Return the time from which all steps of all ranks are known. The caller holds the lock."""
        return max(self._since.values(), default=0.0)

    def matched_calls(self) -> list[MatchedCall]:
        """Return the matched calls of the cell so far."""
        with self._lock:
            steps = {rank: list(own.values()) for rank, own in self._steps.items()}
        return matched_calls(steps)

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

    def story(self, size: int) -> tuple[Ladder, Timeline]:
        """Return the ladder and the timeline of the cell, for a world of ``size`` ranks."""
        with self._lock:
            told, running = self._told, self._running
            raw = self._unread[-1] if self._unread and not running else None
            now = time.time()
            windows = {rank: (began, self._ended.get(rank, now)) for rank, began in self._began.items()}
            since = self._known_since()
        if told is not None:
            return told
        met = self.matched_calls()
        told = (
            ladder.ladder(size, met, ended=not running),
            timeline.timeline(self._number, windows, met, running=running, since=since),
        )
        with self._lock:
            if not running and not self._running:
                self._told = told
                if raw is not None and self._unread and self._unread[-1] is raw:
                    self._unread[-1] = _kept(told[1])  # so that it is not made twice
        return told


def _read(raw: _Raw) -> Past:
    number, windows, steps, since = raw
    return _kept(timeline.timeline(number, windows, matched_calls(steps), running=False, since=since))


def _kept(line: Timeline) -> Past:
    return Past(line.cell, line.seconds, line.waiting, line.late)
