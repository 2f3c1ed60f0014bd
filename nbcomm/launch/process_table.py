"""What is known of a node's processes: which was started last for each key, its end, and who wants to know."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..faults import Faults
from ..protocol import Exited, Started


@dataclass
class Process:
    """A process of the world: the number of its start, its pid, its public key, and its end, if it has ended."""

    start: int
    pid: int
    exited: Exited | None = None
    public: str = ""
    is_told: bool = False
    """Whether those who want to know have heard of its end."""


class ProcessTable:
    """The processes by key ("rank 3", "controller"), as the node knows them.

    Args:
        changed: notified at each change; whoever calls a method that says so holds it.
        faults: where those are noted of the functions that get reports.

    Attributes:
        last: by key, the process that was started last.
        abandoned: the starts that nobody waits for: what still comes of them is killed.
        version: the node's, of what was compared last; below 0 if nothing of the present daemon was.
    """

    def __init__(self, changed: threading.Condition, faults: Faults) -> None:
        self.last: dict[str, Process] = {}
        self.abandoned: set[int] = set()
        self.version = -1
        self._changed = changed
        self._faults = faults
        self._telling = threading.Lock()
        self._on_exit: Callable[[Exited], None] | None = None

    def living(self) -> list[Started]:
        """Return the processes whose end is not known."""
        last = list(self.last.items())
        living = [(key, process) for key, process in last if process.exited is None]
        return [Started(process.start, key, process.pid, process.public) for key, process in living]

    def abandon(self, start: int, key: str) -> None:
        """Forget a start, whether its process is known or not. The caller holds the lock."""
        if self.started(start, key) is not None:
            del self.last[key]
        self.abandoned.add(start)

    def started(self, start: int, key: str) -> Process | None:
        """Return the process of a start, if it is the last one of its key."""
        process = self.last.get(key)
        return process if process is not None and process.start == start else None

    # ── what the node says ──────────────────────────────────────────────────────────────────────────

    def compare(self, table: Iterable[Started | Exited]) -> None:
        """Take over what the node knows; what is known here already changes nothing."""
        with self._changed:
            for report in table:
                if isinstance(report, Started):
                    self._note_start(report)
                else:
                    self._note_end(report)
            self._changed.notify_all()
        self.tell()

    def note_end(self, report: Exited) -> None:
        """Note an end of which the node does not tell."""
        self.compare([report])

    def _note_start(self, report: Started) -> None:
        if report.start in self.abandoned:
            return  # it is killed: the order to do so has followed that to start it
        known = self.last.get(report.key)
        if known is None or known.start < report.start:
            self.last[report.key] = Process(report.start, report.pid, public=report.public)

    def _note_end(self, report: Exited) -> None:
        process = self.started(report.start, report.key)
        if process is not None and process.exited is None:
            process.exited = report

    # ── those who want to know ──────────────────────────────────────────────────────────────────────

    def report_to(self, on_exit: Callable[[Exited], None]) -> None:
        """Set the function that gets the ends, mostly on the link's thread; pending ones are delivered at once."""
        self._on_exit = on_exit
        self.tell()

    def tell(self) -> None:
        """Report the ends that were not reported; one whose report fails is reported again the next time."""
        with self._telling:
            for process in list(self.last.values()):
                if self._on_exit is not None and process.exited is not None and not process.is_told:
                    with self._faults.beside("an end was not noted"):
                        self._on_exit(process.exited)
                        process.is_told = True
