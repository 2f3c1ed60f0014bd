"""The notebook's end of one fork server: starts it, sends orders, hears of deaths."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from ..errors import StartError
from ..home import HOME_VARIABLE, Home
from .orders import Exited, Lease, Order, Ready, Report, Shutdown, Start, Started

_GONE = "The fork server of this world is gone; type %distributed restart."


class ForkServerClient:
    """One fork server, as the notebook steers it.

    Args:
        home: the world's directory, made already.
        on_exit: called on the client's thread when a process ends: key, pid, status.
    """

    def __init__(self, home: Home, on_exit: Callable[[Exited], None] = lambda _: None) -> None:
        self.home = home
        self.on_exit = on_exit
        self.ready: Ready | None = None
        self.pids: dict[str, int] = {}
        """By key, the process that was started last."""
        self._watchers: dict[str, Callable[[int], None]] = {}
        self._changed = threading.Condition()
        self._gone = False
        # One thread per pool in the parent: a fork must not inherit a thread pool, and each rank sets its own.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        # Kept open: a fork server that fails removes the directory, and its last words must still be read.
        self._log = home.forkserver_log.open("w+b")
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "nbcomm.launch.forkserver", str(home.path)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env={**environment, HOME_VARIABLE: str(home.path)},
            start_new_session=True,  # the notebook's Ctrl-C is not for it
        )
        self._socket: socket.socket | None = None
        threading.Thread(target=self._listen, name="nbcomm-forkserver", daemon=True).start()

    def wait_ready(self, timeout: float) -> Ready:
        """Wait until the fork server has imported what it needs.

        Raises:
            StartError: it failed, or took longer than ``timeout`` seconds; the message holds its log.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.ready is not None or self._gone, timeout)
            if self.ready is not None:
                return self.ready
        how = "ended" if self._gone else f"did not come up within {timeout:g} s"
        raise StartError(f"The process that starts the ranks {how}. Its log ends:\n{self._last_words()}")

    def start(self, order: Start, timeout: float = 30.0) -> int:
        """Have a process started; return its pid."""
        with self._changed:
            self.pids.pop(order.key, None)
        self._send(order)
        with self._changed:
            if not self._changed.wait_for(lambda: order.key in self.pids or self._gone, timeout) or self._gone:
                raise StartError(f"The fork server did not start {order.key}. Its log ends:\n{self._last_words()}")
            return self.pids[order.key]

    def watch(self, key: str, on_exit: Callable[[int], None]) -> None:
        """Call back with the exit status when the process under a key ends."""
        self._watchers[key] = on_exit

    def set_lease(self, seconds: float) -> None:
        """How long the world lives on without a notebook."""
        self._send(Lease(seconds))

    def shutdown(self, timeout: float = 10.0) -> None:
        """End every process of the world and wait until its directory is gone."""
        if self.ready is None:
            self._process.kill()  # it imports and hears nothing; nobody depends on it yet
        with suppress(StartError, OSError):
            self._send(Shutdown())
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        self.home.remove()  # the fork server did that, unless it was killed

    def _last_words(self, lines: int = 20) -> str:
        # pread: the fork server writes through the same open file, and moving its position would overwrite.
        said = os.pread(self._log.fileno(), 1 << 20, 0).decode(errors="replace")
        return "\n".join(said.rstrip().splitlines()[-lines:])

    def _send(self, order: Order) -> None:
        if self._socket is None or self._gone:
            raise StartError(_GONE)
        try:
            self._socket.sendall(msgspec.json.encode(order) + b"\n")
        except OSError as error:  # it died this instant, and the listening thread has yet to notice
            raise StartError(_GONE) from error

    def _listen(self) -> None:
        connection = self._connect()
        if connection is not None:
            self._socket = connection
            pending = b""
            with connection, suppress(OSError):
                while data := connection.recv(1 << 16):
                    *lines, pending = (pending + data).split(b"\n")
                    for line in lines:
                        self._hear(msgspec.json.decode(line, type=Report))
        self._process.wait()
        with self._changed:
            self._gone = True
            self._changed.notify_all()

    def _connect(self) -> socket.socket | None:
        connection = socket.socket(socket.AF_UNIX)
        while self._process.poll() is None:
            with suppress(FileNotFoundError, ConnectionRefusedError):
                connection.connect(os.fspath(self.home.forkserver_socket))
                return connection
            time.sleep(0.005)  # it says nothing when its socket is there
        return None

    def _hear(self, report: Report) -> None:
        with self._changed:
            if isinstance(report, Ready):
                self.ready = report
            elif isinstance(report, Started):
                self.pids[report.key] = report.pid  # kept after its end: whoever waits for it may be slow to wake
            self._changed.notify_all()
        if isinstance(report, Exited):
            watcher = self._watchers.pop(report.key, None)
            if watcher is not None:
                watcher(report.status)
            self.on_exit(report)
