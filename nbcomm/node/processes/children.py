"""The processes of a world on this node: their starts, their ends, and those that an earlier fork server started."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack, nullcontext, suppress

import msgspec

from ...faults import Faults
from ...protocol import Exited, Report, Signal, Start, Started, Unwatched
from ...world_dir import WorldDir
from . import child, fork_signals, oom
from .liveness import end, has_ended, kill_orphans, kill_with_children, lives

_Known = list[tuple[int, str, int]]
"""What is written down for the next fork server: start, key and pid of each process that lives."""


def written_down(home: WorldDir) -> list[Started]:
    """Return the processes that a fork server of this world has started; some may have ended."""
    try:
        known = msgspec.json.decode(home.read_children(), type=_Known)
    except (OSError, msgspec.DecodeError):
        return []  # there was none
    return [Started(start, key, pid) for start, key, pid in known]


class Children:
    """The processes of one world on this node.

    Args:
        home: the world's directory.
        selector: is told which descriptors to watch: each is given to `bury`.
        report: called with each start and each end.
        let_go: closes, in a child, what only the fork server uses.
        faults: logs what goes wrong beside the work.
    """

    def __init__(
        self,
        home: WorldDir,
        selector: selectors.BaseSelector,
        report: Callable[[Report], None],
        let_go: Callable[[], None],
        faults: Faults,
    ) -> None:
        self.forks = False
        """Children are forks of this process; else they are started plainly."""
        self._home = home
        self._selector = selector
        self._report = report
        self._let_go = let_go
        self._faults = faults
        self._own: dict[int, Started] = {}  # by pid
        self._spawned: dict[int, subprocess.Popen[bytes]] = {}
        self._adopted: dict[int, Started] = {}  # by a descriptor that becomes readable at the end
        self._unwatched: dict[int, tuple[Started, str]] = {}  # by pid: no descriptor could be had for it
        self._ended: dict[str, tuple[Started, Exited]] = {}  # by key, unless another one was started since
        self._ooms: dict[int, int] = {}
        self._written = b""  # what the file has

    @property
    def any(self) -> bool:
        """Whether a process lives."""
        return bool(self._own or self._adopted or self._unwatched)

    @property
    def due(self) -> bool:
        """Whether `look` must be called now and then."""
        return bool(self._unwatched) or self._written != self._known()

    def living(self) -> list[Started]:
        """Return the processes that live."""
        return [*self._own.values(), *self._adopted.values(), *(started for started, _ in self._unwatched.values())]

    def state(self) -> list[Report]:
        """Return all that is known, in reports."""
        reports: list[Report] = [*self.living()]
        reports += [Unwatched(started.start, started.key, why) for started, why in self._unwatched.values()]
        for started, ended in self._ended.values():
            reports += [started, ended]
        return reports

    # ── starts ──────────────────────────────────────────────────────────────────────────────────────

    def start(self, order: Start) -> None:
        """Start a process, unless that was done: an earlier fork server may have ended before it could answer.

        Raises:
            Exception: it could not be started: too many processes, no memory, a missing working directory.
        """
        done = [
            report for report in self.state() if isinstance(report, Started | Exited) and report.start == order.number
        ]
        if done:
            for report in done:
                self._report(report)
            return
        with fork_signals.held_back() if self.forks else nullcontext():
            pid = self._fork(order) if self.forks else self._spawn(order)
            self._own[pid] = Started(order.number, order.key, pid)
        self._ooms[pid] = self._oom_kills()
        self._ended.pop(order.key, None)
        self._write_down()
        self._report(self._own[pid])

    def _fork(self, order: Start) -> int:
        with suppress(OSError):  # the disk is full
            sys.stdout.flush()
            sys.stderr.flush()
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            child.become(order, self._home.log_of(order.key), self._let_go, parent)
        return pid

    def _spawn(self, order: Start) -> int:
        process = child.spawn(order, self._home.log_of(order.key))
        self._spawned[process.pid] = process  # kept, because Python would reap a dropped Popen itself
        return process.pid

    def signal(self, order: Signal) -> None:
        """Signal a process, if it has not ended; never another one that has its pid now.

        Raises:
            OSError: it is not known whether it has ended.
        """
        for started in self.living():
            if started.start == order.start and (started.pid in self._own or lives(self._home, started.pid)):
                with suppress(ProcessLookupError):
                    os.kill(started.pid, order.signal)

    def _write_down(self) -> None:
        """Write down which processes live, for a fork server that may have to take over, unless that is written."""
        known = self._known()
        if known != self._written:
            with self._faults.beside("the processes could not be written down"):
                self._home.write_children(known)
                self._written = known

    def _known(self) -> bytes:
        known: _Known = [(started.start, started.key, started.pid) for started in self.living()]
        return msgspec.json.encode(known)

    # ── ends ────────────────────────────────────────────────────────────────────────────────────────

    def reap(self) -> None:
        """Report the children that have ended."""
        for pid in list(self._own):
            with self._faults.beside("an end could not be handled"):
                try:
                    done, status = os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    done, status = pid, 0
                if done:
                    self._mourn(pid, os.waitstatus_to_exitcode(status))

    def _mourn(self, pid: int, status: int) -> None:
        """Report the end of a child. Only this call knows of it, so nothing may fail before the report."""
        started, ooms = self._own.pop(pid), self._ooms.pop(pid, 0)
        self._spawned.pop(pid, None)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)  # its remaining child processes
        self._end(started, status, oom=self._oom_kills() > ooms)

    def _end(self, started: Started, status: int | None, *, oom: bool = False) -> None:
        ended = Exited(started.start, started.key, started.pid, status, oom)
        self._ended[started.key] = started, ended
        self._report(ended)
        self._write_down()

    def _oom_kills(self) -> int:
        with self._faults.beside("the kills for lack of memory could not be counted"):
            return oom.kills()
        return 0

    # ── processes of an earlier fork server ─────────────────────────────────────────────────────────

    def adopt_all(self) -> None:
        """Watch the processes that an earlier fork server of this world has written down."""
        self.adopt(written_down(self._home))

    def adopt(self, others: Iterable[Started]) -> None:
        """Watch those of these processes of an earlier fork server that are not known here."""
        starts = {started.start for started in [*self.living(), *(started for started, _ in self._ended.values())]}
        pids = {started.pid for started in self.living()}
        for started in others:
            if started.start not in starts and started.pid not in pids:
                with self._faults.beside("a process could not be taken over"):
                    self._adopt(started)
        self._write_down()

    def _adopt(self, started: Started) -> None:
        try:
            descriptor = self._watched(started.pid)
        except (OSError, AttributeError) as error:  # too many open files, or this system has no pidfd_open
            self._faults.log("a process could not be watched", error)
            self._unwatched[started.pid] = started, str(error)
            return
        if descriptor is None:
            kill_orphans(self._home, started.pid)
            self._ended[started.key] = started, Exited(started.start, started.key, started.pid, None)
        else:
            self._adopted[descriptor] = started

    def _watched(self, pid: int) -> int | None:
        """Return a descriptor that becomes readable at the end of a process; None if it has ended.

        Raises:
            OSError: there is none, or it is not known whether the process has ended.
        """
        if not lives(self._home, pid):
            return None
        with suppress(ProcessLookupError), ExitStack() as failing:
            descriptor = os.pidfd_open(pid)
            failing.callback(os.close, descriptor)
            if lives(self._home, pid):  # its pid was not given to another meanwhile
                self._selector.register(descriptor, selectors.EVENT_READ)
                failing.pop_all()
                return descriptor
        return None

    def bury(self, descriptor: int) -> None:
        """Report the end of an adopted process, whose descriptor has become readable."""
        started = self._adopted.pop(descriptor)
        self._selector.unregister(descriptor)
        os.close(descriptor)
        kill_orphans(self._home, started.pid)
        self._end(started, None)

    def let_go(self) -> None:
        """Close the descriptors of adopted processes; in a child, which would hold them for ever."""
        for descriptor in self._adopted:
            os.close(descriptor)

    def look(self) -> None:
        """See which of the processes have ended that nothing tells of; write down what could not be written before."""
        for pid, (started, _) in list(self._unwatched.items()):
            if has_ended(self._home, pid):
                del self._unwatched[pid]
                kill_orphans(self._home, pid)
                self._end(started, None)
        self._write_down()

    # ── the end of all ──────────────────────────────────────────────────────────────────────────────

    def end_all(self) -> None:
        """Kill every process, with its child processes, and reap those that are children of this one."""
        for started in self.living():
            if started.pid in self._own:
                kill_with_children(started.pid)
            else:
                end(self._home, started.pid)
        for pid in self._own:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
