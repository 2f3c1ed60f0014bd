"""The processes of a world on this node: which live, how they ended, and those that an earlier daemon started.

All of it is one table with a version. Whoever wants to know compares versions, and asks for the whole: no end can be
missed because one message, or one step behind it, has failed.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress

import msgspec
import zmq

from ...faults import Faults
from ...protocol import Exited, Signal, Start, Started
from ...protocol.codec import decode_report
from ...protocol.nodes import rank_of
from ...world_dir import WorldDir
from .. import unsaid
from . import child, oom
from .liveness import end, has_ended, kill_orphans, kill_with_children, lives

_Known = list[tuple[int, str, int, str]]
"""What is written down for the next daemon: start, key, pid and public key of each process that lives."""


def written_down(home: WorldDir) -> list[Started]:
    """Return the processes that a daemon of this world has started; some may have ended."""
    known: list[Started] = []
    with suppress(OSError, msgspec.DecodeError):  # there was none
        known = [Started(*each) for each in msgspec.json.decode(home.read_children(), type=_Known)]
    starts = {each.start for each in known}
    for told in home.noted_starts():  # and what a zygote has started that could not tell its daemon any more
        with suppress(msgspec.DecodeError):
            noted = decode_report(told)
            if isinstance(noted, Started) and noted.start not in starts and lives(home, noted.pid):
                known.append(noted)
    return known


class Children:
    """The processes of one world on this node.

    Args:
        home: the world's directory.
        poller: is told which descriptors to watch: each is given to `on_exit`.
        faults: logs what goes wrong beside the work.

    Attributes:
        version: of the table; it grows with each start and each end.
    """

    def __init__(self, home: WorldDir, poller: zmq.Poller, faults: Faults) -> None:
        self.version = 0
        self._home = home
        self._poller = poller
        self._faults = faults
        self._own: dict[int, Started] = {}  # by pid
        self._spawned: dict[int, subprocess.Popen[bytes]] = {}
        self._adopted: dict[int, Started] = {}  # by a descriptor that becomes readable at the end
        self._unwatched: dict[int, Started] = {}  # by pid: no descriptor could be had for it
        self._ended: dict[str, tuple[Started, Exited]] = {}  # by key, unless another one was started since
        self._statuses: dict[int, int | None] = {}  # of those that have ended, until the table says so
        self._ooms: dict[int, int] = {}
        self._written = b""  # what the file has

    @property
    def any(self) -> bool:
        """Whether a process lives."""
        return bool(self._own or self._adopted or self._unwatched)

    @property
    def due(self) -> bool:
        """Whether `look` must be called now and then."""
        return bool(self._unwatched or self._statuses) or self._written != self._known()

    def living(self) -> list[Started]:
        """Return the processes that live."""
        return [*self._own.values(), *self._adopted.values(), *self._unwatched.values()]

    def table(self) -> list[Started | Exited]:
        """Return all that is known: those that live, and the last end of each key that has no other process since."""
        return [*self.living(), *(report for pair in self._ended.values() for report in pair)]

    def forget_unsaid(self) -> None:
        """Keep no longer what ranks had not said when they died: it was heard."""
        for key, (started, ended) in self._ended.items():
            if ended.unsaid is not None:
                self._ended[key] = started, msgspec.structs.replace(ended, unsaid=None)

    # ── starts ──────────────────────────────────────────────────────────────────────────────────────

    def knows(self, start: int) -> bool:
        """Return whether a start was done: an earlier daemon may have ended before it could answer."""
        return any(report.start == start for report in self.table())

    def spawn(self, order: Start) -> None:
        """Start a process as a program of its own.

        Raises:
            Exception: it could not be started: too many processes, no memory, a missing working directory.
        """
        process = child.spawn(order, self._home.log_of(order.key))
        self._spawned[process.pid] = process  # kept, because Python would reap a dropped Popen itself
        self.add(Started(order.number, order.key, process.pid, order.public))

    def add(self, started: Started) -> None:
        """Note a process that was started just now; it is, or is about to be, a child of this one."""
        self._own[started.pid] = started
        self._ended.pop(started.key, None)
        self.version += 1
        self._ooms[started.pid] = self._oom_kills()
        self._write_down()

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
        """Write down which processes live, for a daemon that may have to take over, unless that is written."""
        known = self._known()
        if known != self._written:
            with self._faults.beside("the processes could not be written down"):
                self._home.write_children(known)
                self._written = known

    def _known(self) -> bytes:
        known: _Known = [(each.start, each.key, each.pid, each.public) for each in self.living()]
        return msgspec.json.encode(known)

    # ── ends ────────────────────────────────────────────────────────────────────────────────────────

    def reap(self, *, starting: bool = False) -> dict[int, int | None]:
        """Note the children that have ended, and those that ranks have left to this process.

        Args:
            starting: another process may be started just now, and have ended before it is known here.

        Returns:
            By pid, how others have ended; None for one that was stopped.
        """
        others: dict[int, int | None] = {}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                break
            if not pid:
                break
            how = None if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status)
            if pid not in self._own:
                others[pid] = how
            if how is not None and (pid in self._own or starting):
                self._statuses[pid] = how
        self._settle(starting=starting)
        return others

    def _settle(self, *, starting: bool) -> None:
        for pid in list(self._statuses):
            if pid in self._own:
                with self._faults.beside("an end could not be handled"):
                    self._on_child_exit(pid)
            elif not starting:
                del self._statuses[pid]  # of a process that a rank had started: its pid may be another's soon

    def _on_child_exit(self, pid: int) -> None:
        """Note the exit of a child; what fails before it is noted is tried again."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)  # its remaining child processes
        process = self._spawned.pop(pid, None)
        if process is not None:
            process.returncode = 0  # or `subprocess` would look for it
        self._end(self._own[pid], self._statuses[pid], oom=self._oom_kills() > self._ooms.get(pid, 0))

    def _end(self, started: Started, status: int | None, *, oom: bool = False) -> None:
        ended, rank = Exited(started.start, started.key, started.pid, status, oom), rank_of(started.key)
        if rank is not None:
            with self._faults.beside("what a rank has not said"):
                ended = msgspec.structs.replace(ended, unsaid=unsaid.read(self._home, rank))
        self._ended[started.key] = started, ended
        self._own.pop(started.pid, None)
        self._unwatched.pop(started.pid, None)
        self._statuses.pop(started.pid, None)
        self._ooms.pop(started.pid, None)
        self.version += 1
        self._write_down()

    def _oom_kills(self) -> int:
        with self._faults.beside("the kills for lack of memory could not be counted"):
            return oom.kills()
        return 0

    # ── processes of an earlier daemon ──────────────────────────────────────────────────────────────

    def adopt_all(self) -> None:
        """Watch the processes that an earlier daemon of this world has written down."""
        self.adopt(written_down(self._home))

    def adopt(self, others: Iterable[Started]) -> None:
        """Watch those of these processes of an earlier daemon that are not known here."""
        starts = {started.start for started in [*self.living(), *(started for started, _ in self._ended.values())]}
        pids = {started.pid for started in self.living()}
        for started in others:
            if started.start not in starts and started.pid not in pids:
                with self._faults.beside("a process could not be taken over"):
                    self._adopt(started)
        self._write_down()

    def _adopt(self, started: Started) -> None:
        self.version += 1
        try:
            descriptor = self._watched(started.pid)
        except (OSError, AttributeError) as error:  # too many open files, or this system has no pidfd_open
            self._faults.log("a process is only looked at", error)
            self._unwatched[started.pid] = started
            return
        if descriptor is None:
            kill_orphans(self._home, started.pid)
            self._end(started, None)
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
                self._poller.register(descriptor, zmq.POLLIN)
                failing.pop_all()
                return descriptor
        return None

    def is_watched(self, descriptor: object) -> bool:
        """Return whether a descriptor is that of an adopted process."""
        return descriptor in self._adopted

    def on_exit(self, descriptor: int) -> None:
        """Note the exit of an adopted process, whose descriptor has become readable."""
        started = self._adopted[descriptor]
        kill_orphans(self._home, started.pid)
        self._end(started, None)
        del self._adopted[descriptor]
        self._poller.unregister(descriptor)
        os.close(descriptor)
        self._write_down()

    def look(self) -> None:
        """See which of the processes have ended that nothing tells of; write down what could not be written before."""
        for started in [started for started in self._of_others() if has_ended(self._home, started.pid)]:
            with self._faults.beside("an end could not be handled"):
                kill_orphans(self._home, started.pid)
                self._end(started, None)
        self._write_down()

    def _of_others(self) -> Sequence[Started]:
        """Return the processes that are watched by nothing: also such for which somebody else has waited."""
        lost = []
        for started in self._own.values():
            try:
                os.waitid(os.P_PID, started.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:  # or the fork that has started it has not ended yet
                if started.pid not in self._statuses:
                    lost.append(started)
        return [*lost, *self._unwatched.values()]

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
