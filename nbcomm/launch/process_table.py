"""What is known of a node's processes: which was started last for each key, its end, and who wants to know."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ..faults import Faults
from ..protocol import Exited, Started, Unwatched
from ..protocol.nodes import key_of


@dataclass
class Process:
    """A process of the world: the number of its start, its pid, and its end, if it has ended."""

    start: int
    pid: int
    exited: Exited | None = None


class ProcessTable:
    """The processes by key ("rank 3", "controller"), as the node reports them.

    Args:
        changed: notified at each end; whoever calls a method that says so holds it.
        faults: where those are noted of the functions that get reports.

    Attributes:
        last: by key, the process that was started last.
        unwatched: by key, why the fork server does not notice its end.
        abandoned: the starts that nobody waits for: what still comes of them is killed.
    """

    def __init__(self, changed: threading.Condition, faults: Faults) -> None:
        self.last: dict[str, Process] = {}
        self.unwatched: dict[str, str] = {}
        self.abandoned: set[int] = set()
        self._changed = changed
        self._faults = faults
        self._news: deque[Exited] = deque()  # ends that are not reported yet
        self._on_exit: Callable[[Exited], None] | None = None

    def is_present(self, rank: int, pid: int) -> bool:
        """Return whether this is the present process of a rank, and not one whose start was abandoned."""
        process = self.last.get(key_of(rank))
        return process is not None and process.pid == pid and process.exited is None

    def living(self) -> list[Started]:
        """Return the processes whose end is not known."""
        last = list(self.last.items())
        return [Started(process.start, key, process.pid) for key, process in last if process.exited is None]

    def abandon(self, start: int, key: str) -> None:
        """Forget a start, whether its process is known or not. The caller holds the lock."""
        if self.started(start, key) is not None:
            del self.last[key]
        self.abandoned.add(start)

    def started(self, start: int, key: str) -> Process | None:
        """Return the process of a start, if it is the last one of its key."""
        process = self.last.get(key)
        return process if process is not None and process.start == start else None

    # ── reports ─────────────────────────────────────────────────────────────────────────────────────

    def note_start(self, report: Started) -> None:
        """Note a start; an agent repeats those that it knows. The caller holds the lock."""
        if report.start in self.abandoned:
            return  # it is killed: the order to do so has followed that to start it
        known = self.last.get(report.key)
        if known is None or known.start < report.start:
            self.last[report.key] = Process(report.start, report.pid)
            self.unwatched.pop(report.key, None)

    def note_unwatched(self, report: Unwatched) -> None:
        """Note a process whose end will not be noticed. The caller holds the lock."""
        self.unwatched[report.key] = report.why

    def note_end(self, report: Exited) -> None:
        """Note an end, and report it, unless it is that of an abandoned start, or was reported before."""
        with self._changed:
            process = self.started(report.start, report.key)
            if process is None or process.exited is not None:
                return
            process.exited = report
            self.unwatched.pop(report.key, None)
            self._news.append(report)
            self._changed.notify_all()
        self._pass_on()

    def _pass_on(self) -> None:
        """Deliver pending reports, on the thread on which it first becomes possible."""
        while self._on_exit is not None:
            try:
                ended = self._news.popleft()
            except IndexError:
                return
            with self._faults.beside("an end was not noted"):
                self._on_exit(ended)

    # ── those who want to know ──────────────────────────────────────────────────────────────────────

    def report_to(self, on_exit: Callable[[Exited], None]) -> None:
        """Set the function that gets the ends, mostly on the link's thread; pending ones are delivered at once."""
        self._on_exit = on_exit
        self._pass_on()
