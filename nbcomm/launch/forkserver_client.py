"""The notebook's end of one fork server: starts it, sends orders, receives reports of ended processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from typing import IO

import msgspec
import psutil

from ..errors import Interrupted, StartError, StateError
from ..faults import Faults
from ..node.exit_status import how_it_ended
from ..node.forkserver_protocol import (
    Adopt,
    Adopted,
    Busy,
    Claim,
    Claimed,
    Exited,
    Lease,
    Order,
    Ready,
    Refused,
    Report,
    Shutdown,
    Start,
    Started,
    WorldStatus,
)
from ..rank_spec import capital
from ..threads import keep
from ..world_dir import HOME_VARIABLE, WorldDir
from .working_folder import to_start_in

_GONE = "The fork server of this world has ended; type %distributed heal to start another, or %distributed restart."

_TICK, _MOMENT = 0.05, 1.0
"""Seconds between two checks, and seconds in which a fork server that has not answered must end."""

_Told = tuple[Callable[[Exited], None], Callable[[str], None]]


class ForkServerClient:
    """The notebook's client of one fork server.

    Args:
        home: the world's directory, which must exist.
        running: connect to a fork server that runs already, instead of starting one.
    """

    def __init__(self, home: WorldDir, *, running: bool = False) -> None:
        self.home = home
        self.pid = 0
        self.holder = 0
        """The process of another notebook that holds the world; 0 if this notebook holds it."""
        self.ready: Ready | None = None
        self.pids: dict[str, int] = {}
        """By key, the pid of the process that was started last."""
        self.exited: dict[str, Exited] = {}
        """By key, the end of the process that was started last, if it has ended."""
        self._watchers: dict[str, Callable[[int | None], None]] = {}
        self._news: deque[Exited | str] = deque()  # ends that are not reported yet
        self._told: _Told | None = None
        self._faults = Faults()
        self._changed = threading.Condition()
        self._gone = False
        self._leaving = self._released = False
        self._refused: dict[str, str] = {}
        self._adopted: list[dict[str, str]] = []  # the answer to an `Adopt`
        self._given_up = False
        self._unwanted: Counter[str] = Counter()  # abandoned starts, by key
        self._dismissed: set[int] = set()  # processes of abandoned starts, whose ends are not reported
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        if running:
            self._log: IO[bytes] = home.forkserver_log.open("rb")
        else:
            self._launch()
        keep("nbcomm-forkserver", self._listen, self._faults)

    def _launch(self) -> None:
        home = self.home
        # One thread per pool in the parent: a fork must not inherit a thread pool, and each rank sets its own size.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        # Kept open: a fork server that fails removes the directory, and the end of its log must still be read.
        log = os.open(home.forkserver_log, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        self._log = os.fdopen(log, "w+b")
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "nbcomm.node.forkserver", str(home.path)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env={**environment, HOME_VARIABLE: str(home.path)},
            cwd=to_start_in(home),
            start_new_session=True,  # so that it does not get the notebook's Ctrl-C
        )
        self.pid = self._process.pid

    @property
    def gone(self) -> bool:
        """Whether the fork server has ended."""
        return self._gone

    def wait_ready(self, timeout: float, given_up: Callable[[], bool] = lambda: False) -> Ready:
        """Wait until the fork server has finished its imports, and return its report.

        Args:
            timeout: seconds.
            given_up: whether the caller has given up; checked all the time.

        Raises:
            Interrupted: it was given up.
            StartError: it failed, or took longer than ``timeout`` seconds; the message contains its log.
            StateError: another notebook holds the world.
        """
        with self._changed:
            self._await(lambda: self.ready is not None or self._gone or bool(self.holder), timeout, given_up)
            if self.holder:
                raise StateError(f"This world is in use by the notebook of process {self.holder}.")
            if self.ready is not None:
                return self.ready
        how = "ended" if self._gone else f"did not start within {timeout:g} s"
        raise StartError(f"The process that starts the ranks {how}. Its log ends:\n{self._last_words()}")

    def start(self, order: Start, timeout: float = 30.0) -> int:
        """Let the fork server start a process, and return its pid.

        Raises:
            StartError: it was not started, or the start was abandoned (`give_up`); if it still starts, it is killed.
        """
        with self._changed:
            self._given_up = False
            self.pids.pop(order.key, None)
            self.exited.pop(order.key, None)
            self._refused.pop(order.key, None)
        self._send(order)
        with self._changed:
            self._changed.wait_for(lambda: self._is_answered(order.key) or self._given_up, timeout)
            if not self._is_answered(order.key):
                self._unwanted[order.key] += 1
            if order.key in self._refused:
                whose = capital(order.key)
                raise StartError(f"{whose} could not be started: {self._refused[order.key].rstrip('.')}.")
            if order.key not in self.pids or self._gone:
                raise StartError(f"The fork server did not start {order.key}. Its log ends:\n{self._last_words()}")
            return self.pids[order.key]

    def _await(self, condition: Callable[[], bool], timeout: float, given_up: Callable[[], bool]) -> None:
        """Wait until a condition holds or the time is over. The caller holds ``_changed``."""
        deadline = time.monotonic() + timeout
        while not condition() and time.monotonic() < deadline:
            if given_up():
                raise Interrupted
            self._changed.wait(_TICK)

    def _is_answered(self, key: str) -> bool:
        return key in self.pids or key in self._refused or self._gone

    def give_up(self) -> None:
        """Abandon the start that is in progress; call this from any thread."""
        with self._changed:
            self._given_up = True
            self._changed.notify_all()

    def report_to(self, on_exit: Callable[[Exited], None], on_gone: Callable[[str], None]) -> None:
        """Set the functions that get reports of ends; pending reports are delivered at once.

        Args:
            on_exit: called when a process ends; mostly on the client's thread.
            on_gone: called with how the fork server ended, if it ends by itself; on the same threads.
        """
        self._told = on_exit, on_gone
        self._pass_on()

    def watch(self, key: str, on_exit: Callable[[int | None], None]) -> None:
        """Call a function with the exit status when the process of a key ends."""
        self._watchers[key] = on_exit

    def set_lease(self, seconds: float) -> None:
        """Set how long the world lives without a notebook."""
        self._send(Lease(seconds))

    def adopt(
        self, children: dict[str, int], timeout: float = 5.0, given_up: Callable[[], bool] = lambda: False
    ) -> dict[str, str]:
        """Let the fork server adopt processes that an earlier fork server started.

        Returns:
            By key, why a process was not adopted.

        Raises:
            Interrupted: it was given up.
        """
        with self._changed:
            self._adopted.clear()
            self.pids.update(children)
        self._send(Adopt(children))
        with self._changed:
            self._await(lambda: bool(self._adopted) or self._gone, timeout, given_up)
            return next(iter(self._adopted), dict.fromkeys(children, f"it has not answered within {timeout:g} s"))

    def release(self) -> None:
        """Release the world without ending it; its lease runs from now on."""
        self._leaving = self._released = True
        if self._socket is not None:
            with suppress(OSError):  # it has hung up first
                self._socket.shutdown(socket.SHUT_RDWR)
        self._log.close()

    def shutdown(self, timeout: float = 10.0) -> None:
        """End every process of the world, and wait until its directory is removed."""
        self._leaving, alone = True, self._gone
        if self.ready is None and self._process is not None:
            self._process.kill()  # it is importing and reads nothing; no process depends on it yet
        with suppress(StartError, OSError):
            self._send(Shutdown())
        with self._changed:
            # A fork server that has not answered a start will not answer within ten seconds.
            ended = self._changed.wait_for(lambda: self._gone, _MOMENT if self._unwanted else timeout)
        if not ended and self._process is not None:
            self._process.kill()
            self._process.wait()
            self._end_children()
        if alone:
            self._end_orphans()
        self._log.close()
        self.home.remove()  # the fork server did this, unless it was killed

    def _end_children(self) -> None:
        """Kill the processes of a killed fork server; it has not reaped them, so their pids are not reused."""
        for key, pid in self.pids.items():
            if key not in self.exited:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _end_orphans(self) -> None:
        """Kill processes that outlived their fork server and do not react to the notebook, for example in C code."""
        _, left = psutil.wait_procs(list(filter(None, map(self._ours, self.pids.values()))), _MOMENT)
        for process in left:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # with its child processes: each leads a process group
        psutil.wait_procs(left, _MOMENT)

    def _ours(self, pid: int) -> psutil.Process | None:
        """Return a process if it lives and belongs to this world, because its pid may have been reused; else None."""
        try:
            process = psutil.Process(pid)
            ours = process.environ().get(HOME_VARIABLE) == os.fspath(self.home.path)
            return process if ours and process.status() != psutil.STATUS_ZOMBIE else None
        except (psutil.Error, OSError):
            return None

    def _last_words(self, lines: int = 20) -> str:
        # pread: the fork server writes through the same open file, and a changed position would overwrite its log.
        said = os.pread(self._log.fileno(), 1 << 20, 0).decode(errors="replace")
        return "\n".join(said.rstrip().splitlines()[-lines:])

    def _send(self, order: Order) -> None:
        if self._socket is None or self._gone:
            raise StartError(_GONE)
        try:
            self._socket.sendall(msgspec.json.encode(order) + b"\n")
        except OSError as error:  # it died just now, and the listening thread has not noticed yet
            raise StartError(_GONE) from error

    def _listen(self) -> None:
        """Read the fork server's reports until it is gone; runs on the client's thread."""
        with suppress(OSError):
            connection = self._connect()
            if connection is not None:
                self._socket = connection
                with connection:
                    self._hear_all(connection)
        status = self._process.wait() if self._process is not None and not self._released else None
        with self._changed:
            self._gone = True
            self._changed.notify_all()
        if not self._leaving:
            self._news.append("has ended" if status is None else how_it_ended(status))
            self._pass_on()

    def _hear_all(self, connection: socket.socket) -> None:
        pending = b""
        while data := connection.recv(1 << 16):
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                with self._faults.beside("what the fork server said was not understood"):
                    self._hear(msgspec.json.decode(line, type=Report))

    def _connect(self) -> socket.socket | None:
        connection = socket.socket(socket.AF_UNIX)
        while self._process is None or self._process.poll() is None:
            with suppress(FileNotFoundError, ConnectionRefusedError):
                connection.connect(os.fspath(self.home.forkserver_socket))
                connection.sendall(msgspec.json.encode(Claim(os.getpid())) + b"\n")
                return connection
            if self._process is None:
                return None  # it has ended
            time.sleep(0.005)  # it gives no sign when its socket exists
        return None

    def _dismiss(self, report: Started | Refused) -> None:
        """Kill the process of an abandoned start. Orders are answered in order, so the key's oldest start is meant."""
        self._unwanted[report.key] -= 1
        self._unwanted += Counter()  # removes zero counts
        if isinstance(report, Started):
            self._dismissed.add(report.pid)
            with suppress(ProcessLookupError):
                os.kill(report.pid, signal.SIGKILL)

    def _hear(self, report: Report) -> None:
        if isinstance(report, Exited):
            self._hear_end(report)
            return
        with self._changed:
            if isinstance(report, Ready):
                self.ready = report
            elif isinstance(report, Started | Refused) and self._unwanted[report.key]:
                self._dismiss(report)
            elif isinstance(report, Started):
                self.pids[report.key] = report.pid  # kept after its end: the thread that waits for it may wake late
            elif isinstance(report, Claimed):
                self.pids.update(report.children)
            elif isinstance(report, Adopted):
                self._adopted.append(report.refused)
            elif isinstance(report, WorldStatus):
                self.pid = report.pid
            elif isinstance(report, Busy):
                self.holder = report.holder
            elif isinstance(report, Refused):
                self._refused[report.key] = report.why
            self._changed.notify_all()

    def _hear_end(self, report: Exited) -> None:
        if report.pid in self._dismissed:
            self._dismissed.discard(report.pid)
            return
        if self.exited.get(report.key) == report:  # it is reported again at each claim
            return
        self.exited[report.key] = report
        self._news.append(report)
        watcher = self._watchers.pop(report.key, None)
        if watcher is not None:
            with self._faults.beside("an end was not noted"):
                watcher(report.status)
        self._pass_on()

    def _pass_on(self) -> None:
        """Deliver pending reports, on the thread on which it first becomes possible."""
        told = self._told
        while told is not None:
            try:
                news = self._news.popleft()
            except IndexError:
                return
            with self._faults.beside("an end was not noted"):
                if isinstance(news, Exited):
                    told[0](news)
                else:
                    told[1](news)
