"""The process that starts, reaps and outlives the processes of one world.

``python -m nbcomm.node.forkserver HOME`` imports torch and ipyparallel once; an engine is then a fork of
it, which is ready in a tenth of a second and shares most of its memory. If forking is not possible
(macOS), this process starts its children plainly, and everything else is the same.

It has one thread only: after a fork, the child has only the thread that called it, and every lock that another
thread held stays locked forever. So this process never runs a tensor operation, never uses CUDA, opens no ZMQ
context, and waits for orders, deaths and the end of its lease in one `select`.

It takes orders on a Unix socket in the world's directory, one JSON object a line. Every connection may read the
status; one connection at a time may claim the world, and give orders. While a connection holds it, the world lives.
When no connection has held it for the lease, or ``shutdown`` is ordered, it ends every process that it started,
removes the directory, and ends. It does this without the notebook, because a killed notebook cannot.

Nothing else ends it, because its end is the end of every rank. A failed order is answered with the reason. If a step
of its own fails, that is logged, and the step is tried again.
"""

from __future__ import annotations

import importlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
import traceback
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import msgspec

from ..faults import Faults
from ..world_dir import HOME_VARIABLE, WorldDir
from . import child, oom
from .forkserver_protocol import (
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
    Start,
    Started,
    WorldStatus,
)
from .warmup import count_gpus, freeze, warm_up

_SPARE_TIME = (
    "sympy.core",
    "sympy.polys",
    "sympy",
    "torch.fx.experimental.symbolic_shapes",
    "torch.distributed.tensor",
    "torch.distributed.fsdp",
    "torch._inductor",
    "torch._dynamo",
    "stack_data",  # IPython's tracebacks
)
"""Modules that every rank would import at its first optimizer, in steps, so that an order never waits for all."""

_IDLE = 1.0
"""Seconds without an order after which these are imported."""

_LONGEST_WORD = 4096
"""Bytes of the longest line from a connection that does not hold the world: a `Claim` is short."""

_FIRST_VISIT = 10.0
"""Seconds that the notebook which started this process has to connect to it."""

_LONGEST_SLEEP = 3600.0
"""Seconds after which the lease is checked again: the system's wait refuses about 25 days."""

_BREATH = 0.1
"""Seconds of pause after a failed step: a step that fails again at once must not occupy a core, or fill the disk."""


# ── the server ──────────────────────────────────────────────────────────────────────────────────────


class ForkServer:
    """The loop that handles orders and deaths.

    Args:
        home: the world's directory.
        ready: the report for a notebook that claims the world.
        listener: the socket on which it accepts connections.
    """

    def __init__(self, home: WorldDir, ready: Ready, listener: socket.socket) -> None:
        self._home = home
        self._ready = ready
        self._lease = 0.0
        self._children: dict[int, str] = {}
        self._spawned: dict[int, subprocess.Popen[bytes]] = {}
        self._adopted: dict[int, tuple[str, int]] = {}  # by a descriptor that becomes readable at the end: key, pid
        self._past: list[Exited] = []  # for the next connection that claims the world
        self._ooms: dict[int, int] = {}
        self._inputs: dict[socket.socket, bytearray] = {}
        self._holder: tuple[socket.socket, int] | None = None
        self._alone_since: float | None = time.monotonic()
        self._met = False
        self._faults = Faults()
        self._stumbled = False
        self._spare_time = list(_SPARE_TIME) if ready.forks else []
        self._listener = listener
        self._woken, wake = socket.socketpair()
        for end in (self._woken, wake):
            end.setblocking(False)  # noqa: FBT003 - positional only
        self._wake = wake
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only to wake `select`
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._ordered_to_end)
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)

    def serve(self) -> None:
        """Serve until the world ends."""
        try:
            while not self._lease_is_over():
                with self._going_on("a turn"):
                    self._turn()
        finally:
            self._end()

    def _turn(self) -> None:
        """Wait until something happens, and handle it."""
        patience = self._patience()
        if self._stumbled:
            # The failed step may have consumed the only notice of work that remains to be done.
            self._stumbled, patience = False, 0.0
            time.sleep(_BREATH)
        events = self._selector.select(patience)
        if not events and self._may_import():
            self._import_more()
        for key, _ in events:
            with self._going_on("an event"):
                self._attend(key.fileobj)
        self._reap()

    def _attend(self, source: Any) -> None:
        if source is self._listener:
            self._welcome()
        elif source is self._woken:
            with suppress(BlockingIOError):
                self._woken.recv(4096)
        elif isinstance(source, socket.socket):
            self._obey(source)
        else:
            self._bury(source)

    def _going_on(self, what: str) -> AbstractContextManager[None]:
        """Return a context for a step that may fail: its error is logged, and another turn follows soon."""
        return self._faults.beside(f"the fork server stumbled over {what}", self._stumble)

    def _stumble(self, _: str) -> None:
        self._stumbled = True

    def _may_import(self) -> bool:
        return bool(self._spare_time and self._holder and not self._children)

    def _import_more(self) -> None:
        """Import one more module that the ranks will need later. Call this only when there is no order."""
        with suppress(Exception):  # it may be moved or broken in another version of torch
            importlib.import_module(self._spare_time.pop(0))
        if not self._spare_time:
            why = freeze()
            self._ready = Ready(forks=not why, gpus=self._ready.gpus, why=why)

    def _patience(self) -> float | None:
        if self._may_import():
            return _IDLE if len(self._spare_time) == len(_SPARE_TIME) else 0.0
        if self._alone_since is None:
            return None
        return min(max(0.0, self._alone_since + self._grace() - time.monotonic()), _LONGEST_SLEEP)

    def _grace(self) -> float:
        if not self._met:
            return _FIRST_VISIT
        return self._lease if self._children or self._adopted else 0.0

    def _lease_is_over(self) -> bool:
        return self._alone_since is not None and time.monotonic() - self._alone_since >= self._grace()

    def _ordered_to_end(self, *_: Any) -> None:
        raise SystemExit

    # ── orders ──────────────────────────────────────────────────────────────────────────────────────

    def _welcome(self) -> None:
        connection, _ = self._listener.accept()
        self._inputs[connection] = bytearray()
        self._selector.register(connection, selectors.EVENT_READ)
        alone = 0.0 if self._alone_since is None else time.monotonic() - self._alone_since
        holder = self._holder[1] if self._holder else 0
        self._tell(connection, WorldStatus(os.getpid(), holder, alone, self._lease))

    def _claim(self, connection: socket.socket, pid: int) -> None:
        if self._holder is not None:
            self._tell(connection, Busy(self._holder[1]))
            return
        self._holder = connection, pid
        self._alone_since = None
        self._met = True
        living = {key: pid for pid, key in self._children.items()} | dict(self._adopted.values())
        self._tell(connection, Claimed(living))
        for exited in self._past:
            self._tell(connection, exited)
        self._tell(connection, self._ready)  # the last report of a claim

    def _obey(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._farewell(connection)
            return
        pending = self._inputs[connection]
        pending += data
        *lines, rest = pending.split(b"\n")
        self._inputs[connection] = bytearray(rest)
        if len(rest) > _LONGEST_WORD and not self._holds(connection):
            self._farewell(connection)
            return
        for line in lines:
            try:
                order: Order = msgspec.json.decode(line, type=Order)
            except (ValueError, RecursionError, msgspec.DecodeError):
                self._farewell(connection)  # it is not a notebook of ours
                return
            if isinstance(order, Claim):
                self._claim(connection, order.pid)
            elif not self._holds(connection):
                self._farewell(connection)  # it may only read the status
                return
            else:
                with self._going_on(f"a {type(order).__name__}"):
                    self._do(order)

    def _do(self, order: Order) -> None:
        if isinstance(order, Start):
            self._start(order)
        elif isinstance(order, Lease):
            self._lease = order.seconds
        elif isinstance(order, Adopt):
            self._report(Adopted({key: why for key, pid in order.children.items() if (why := self._adopt(key, pid))}))
        else:
            raise SystemExit

    def _farewell(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        connection.close()
        del self._inputs[connection]
        if self._holds(connection):
            self._holder = None
            self._alone_since = time.monotonic()

    def _holds(self, connection: socket.socket) -> bool:
        return self._holder is not None and self._holder[0] is connection

    def _report(self, report: Report) -> None:
        if isinstance(report, Exited):
            self._past.append(report)
        if self._holder is not None:
            self._tell(self._holder[0], report)

    def _tell(self, connection: socket.socket, report: Report) -> None:
        with suppress(OSError):  # it is gone; the next read will show it
            connection.sendall(msgspec.json.encode(report) + b"\n")

    # ── children ────────────────────────────────────────────────────────────────────────────────────

    def _start(self, order: Start) -> None:
        try:
            pid = self._fork(order) if self._ready.forks else self._spawn(order)
        except Exception as error:  # noqa: BLE001 - too many processes, no memory, a missing working directory
            self._report(Refused(order.key, str(error) or type(error).__name__))
            return
        self._children[pid] = order.key
        self._ooms[pid] = self._oom_kills()
        self._past = [past for past in self._past if past.key != order.key]
        self._report(Started(order.key, pid))

    def _fork(self, order: Start) -> int:
        with suppress(OSError):  # the disk is full
            sys.stdout.flush()
            sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            child.become(order, self._let_go)
        return pid

    def _let_go(self) -> None:
        self._selector.close()
        for connection in (self._listener, self._woken, self._wake, *self._inputs):
            connection.close()

    def _spawn(self, order: Start) -> int:
        process = child.spawn(order)
        self._spawned[process.pid] = process  # kept, because Python would reap a dropped Popen itself
        return process.pid

    def _oom_kills(self) -> int:
        with self._going_on("the count of kills for lack of memory"):
            return oom.kills()
        return 0

    def _reap(self) -> None:
        for pid in list(self._children):
            with self._going_on("an end"):
                try:
                    done, status = os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    done, status = pid, 0
                if done:
                    self._mourn(pid, os.waitstatus_to_exitcode(status))

    def _mourn(self, pid: int, status: int) -> None:
        """Report the end of a child. Only this call knows of it, so nothing may fail before the report."""
        key, ooms = self._children.pop(pid), self._ooms.pop(pid, 0)
        self._spawned.pop(pid, None)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)  # its remaining child processes
        self._report(Exited(key, pid, status, self._oom_kills() > ooms))

    def _adopt(self, key: str, pid: int) -> str:
        """Watch a process whose parent is gone, after a check that it belongs to this world.

        Returns:
            Why a live process cannot be watched; else an empty text.
        """
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if f"{HOME_VARIABLE}={self._home.path}".encode() in environment:
                descriptor = os.pidfd_open(pid)
                self._selector.register(descriptor, selectors.EVENT_READ)
                self._adopted[descriptor] = key, pid
            else:
                self._report(Exited(key, pid, None))
        except (FileNotFoundError, ProcessLookupError):
            self._report(Exited(key, pid, None))
        except Exception as error:  # noqa: BLE001 - too many open files, or the system refuses: it lives nevertheless
            self._faults.log("a process could not be taken care of", error)
            return str(error) or type(error).__name__
        return ""

    def _bury(self, descriptor: int) -> None:
        key, pid = self._adopted.pop(descriptor)
        self._selector.unregister(descriptor)
        os.close(descriptor)
        self._report(Exited(key, pid, None))

    def _end(self) -> None:
        signal.set_wakeup_fd(-1)
        for pid in (*self._children, *(pid for _, pid in self._adopted.values())):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)  # with its child processes: each leads a process group
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # it may have been forked just now, and lead no group yet
        for pid in self._children:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
        self._home.remove()


def _is_inhabited(home: WorldDir) -> bool:
    """Tell whether an earlier fork server started ranks in this directory, which they still need."""
    try:
        home.read_world()
    except (OSError, msgspec.DecodeError):
        return False
    return True


def main() -> None:
    """Serve the world whose directory is the first argument."""
    home = WorldDir(sys.argv[1])
    os.environ[HOME_VARIABLE] = str(home.path)
    listener = socket.socket(socket.AF_UNIX)
    home.forkserver_socket.unlink(missing_ok=True)  # that of an earlier fork server that was killed
    listener.bind(os.fspath(home.forkserver_socket))
    listener.listen(8)
    try:
        why = warm_up(child.MODULES.values())
        ready = Ready(not why, count_gpus(), why)
    except BaseException:  # noqa: BLE001 - an interrupt must not leave the directory either
        # The log may be removed with the directory, because the notebook holds it open.
        traceback.print_exc()
        sys.stderr.flush()
        if not _is_inhabited(home):
            home.remove()
        raise SystemExit(1) from None
    ForkServer(home, ready, listener).serve()


if __name__ == "__main__":
    main()
