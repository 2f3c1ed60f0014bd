"""The process that starts, reaps and outlives the processes of one world.

``python -m nbcomm.launch.forkserver HOME`` imports torch and ipyparallel once; an engine is then a fork of
it, ready in a tenth of a second and sharing most of its memory. Where forking is not to be had (macOS),
the same process starts its children plainly, and everything else stays as it is.

Why one thread only: after a fork, the child has the one thread that called it, and every lock that another
thread held stays locked for ever. So this process never runs a tensor operation, never touches CUDA, opens
no ZMQ context, and waits for orders, deaths and the end of its lease in one `select`.

It takes orders on a Unix socket in the world's directory, one JSON object a line. While a notebook is
connected the world lives. When the last connection has been gone for the lease, or ``shutdown`` is ordered,
it ends every process that it started, removes the directory, and ends. It asks nobody else to do this,
because a killed notebook cannot.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from ..home import HOME_VARIABLE, Home
from .orders import Exited, Lease, Order, Ready, Report, Start, Started

MODULES = {"engine": "nbcomm.rank.engine", "controller": "ipyparallel.controller.app"}
"""What can be started: the module whose ``main`` is called, or that is run with ``-m``."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h

_SPARE_TIME = (
    "sympy.core",
    "sympy.polys",
    "sympy",
    "torch.fx.experimental.symbolic_shapes",
    "torch.distributed.tensor",
    "torch.distributed.fsdp",
    "torch._inductor",
    "torch._dynamo",
)
"""What every rank would import at its first optimizer, in steps, so that an order never waits for all of it."""

_IDLE = 1.0
"""Seconds without an order after which the next of these is imported."""

_FIRST_VISIT = 10.0
"""Seconds that the notebook which started this process has to connect to it."""


# ── the server ──────────────────────────────────────────────────────────────────────────────────────


class ForkServer:
    """Waits for orders and deaths.

    Args:
        home: the world's directory.
        forks: whether children are forked.
        ready: what to tell a notebook that connects.
    """

    def __init__(self, home: Home, ready: Ready, listener: socket.socket) -> None:
        self._home = home
        self._ready = ready
        self._lease = 0.0
        self._children: dict[int, str] = {}
        self._spawned: dict[int, subprocess.Popen[bytes]] = {}
        self._inputs: dict[socket.socket, bytearray] = {}
        self._alone_since: float | None = time.monotonic()
        self._met = False
        self._spare_time = list(_SPARE_TIME) if ready.forks else []
        self._listener = listener
        self._woken, wake = socket.socketpair()
        for end in (self._woken, wake):
            end.setblocking(False)  # noqa: FBT003 - positional only
        self._wake = wake
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only to be woken
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._ordered_to_end)
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)

    def serve(self) -> None:
        """Serve until the world ends."""
        try:
            while not self._lease_is_over():
                events = self._selector.select(self._patience())
                if not events and self._may_import():
                    self._import_more()
                for key, _ in events:
                    source = key.fileobj
                    if source is self._listener:
                        self._welcome()
                    elif source is self._woken:
                        with suppress(BlockingIOError):
                            self._woken.recv(4096)
                    elif isinstance(source, socket.socket):
                        self._obey(source)
                self._reap()
        finally:
            self._end()

    def _may_import(self) -> bool:
        return bool(self._spare_time and self._inputs and not self._children)

    def _import_more(self) -> None:
        """Nobody wants anything: import one more of what the ranks will need later."""
        with suppress(ImportError):  # another version of torch may have moved it
            importlib.import_module(self._spare_time.pop(0))
        if not self._spare_time:
            why = _freeze()
            self._ready = Ready(forks=not why, gpus=self._ready.gpus, why=why)

    def _patience(self) -> float | None:
        if self._may_import():
            return _IDLE if len(self._spare_time) == len(_SPARE_TIME) else 0.0
        if self._alone_since is None:
            return None
        return max(0.0, self._alone_since + self._grace() - time.monotonic())

    def _grace(self) -> float:
        if not self._met:
            return _FIRST_VISIT
        return self._lease if self._children else 0.0

    def _lease_is_over(self) -> bool:
        return self._alone_since is not None and time.monotonic() - self._alone_since >= self._grace()

    def _ordered_to_end(self, *_: Any) -> None:
        raise SystemExit

    # ── orders ──────────────────────────────────────────────────────────────────────────────────────

    def _welcome(self) -> None:
        connection, _ = self._listener.accept()
        self._inputs[connection] = bytearray()
        self._alone_since = None
        self._met = True
        self._selector.register(connection, selectors.EVENT_READ)
        self._tell(connection, self._ready)

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
        for line in lines:
            try:
                order: Order = msgspec.json.decode(line, type=Order)
            except msgspec.DecodeError:
                self._farewell(connection)  # whoever this is, it is not a notebook of ours
                return
            if isinstance(order, Start):
                self._start(order)
            elif isinstance(order, Lease):
                self._lease = order.seconds
            else:
                raise SystemExit

    def _farewell(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        connection.close()
        del self._inputs[connection]
        if not self._inputs:
            self._alone_since = time.monotonic()

    def _report(self, report: Report) -> None:
        for connection in list(self._inputs):
            self._tell(connection, report)

    def _tell(self, connection: socket.socket, report: Report) -> None:
        with suppress(OSError):  # it is gone; reading from it will say so
            connection.sendall(msgspec.json.encode(report) + b"\n")

    # ── children ────────────────────────────────────────────────────────────────────────────────────

    def _start(self, order: Start) -> None:
        if self._ready.forks:
            sys.stdout.flush()
            sys.stderr.flush()
            pid = os.fork()
            if pid == 0:
                self._become_child(order)
        else:
            with Path(order.log).open("ab") as log:
                child = subprocess.Popen(  # noqa: S603 - our own modules, by name
                    [sys.executable, "-m", MODULES[order.what].removesuffix(".app"), *order.argv],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=order.env,
                    cwd=order.cwd,
                    start_new_session=True,
                )
            pid = child.pid
            self._spawned[pid] = child  # kept: a dropped Popen would be reaped behind our back
        self._children[pid] = order.key
        self._report(Started(order.key, pid))

    def _become_child(self, order: Start) -> None:
        """Turn this fork into what was ordered; never returns."""
        status = 1
        try:
            os.setsid()  # the notebook's Ctrl-C is not for it
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            self._selector.close()
            for connection in (self._listener, self._woken, self._wake, *self._inputs):
                connection.close()
            if order.what == "controller":
                # Nobody would end it, or its heart monitor, which is a fork of it; an engine sees to its own end.
                _die_with_parent()
                os.register_at_fork(after_in_child=_die_with_parent)
            _take_log(order.log)
            os.environ.clear()
            os.environ.update(order.env)
            os.chdir(order.cwd)
            sys.argv = [order.what, *order.argv]
            importlib.import_module(MODULES[order.what]).main(order.argv)
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except BaseException:  # noqa: BLE001 - nothing may return into the server's own loop
            import traceback

            traceback.print_exc()
        finally:
            with suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def _reap(self) -> None:
        for pid in list(self._children):
            try:
                done, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                done, status = pid, 0
            if done:
                self._spawned.pop(pid, None)
                self._report(Exited(self._children.pop(pid), pid, os.waitstatus_to_exitcode(status)))

    def _end(self) -> None:
        signal.set_wakeup_fd(-1)
        for pid in self._children:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)  # each leads a group of its own: what it started goes too
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # unless it was forked this instant, and leads none yet
        for pid in self._children:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
        self._home.remove()


def _die_with_parent() -> None:
    """Have this process killed when the one that forked it dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _take_log(path: str) -> None:
    """Make a file descriptors 1 and 2, and nothing descriptor 0."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for descriptor, source in ((0, null), (1, log), (2, log)):
        os.dup2(source, descriptor)
    os.close(log)
    os.close(null)


# ── before the first order ──────────────────────────────────────────────────────────────────────────


def _warm_up() -> str:
    """Import what engines and controller need. Return why children cannot be forked, or an empty text."""
    if sys.platform != "linux":
        return f"processes are not forked on {sys.platform}"
    if os.environ.get("NBCOMM_START") == "spawn":
        return "NBCOMM_START=spawn"
    for module in (*MODULES.values(), "nbcomm.rank.comm", "nbcomm.rank.guard", "ipyparallel.serialize"):
        importlib.import_module(module)
    return _freeze()


def _freeze() -> str:
    """Make ready to fork. Return why that cannot be, or an empty text."""
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        return f"{threads} threads run after the imports"
    gc.collect()
    gc.freeze()  # or the collector would touch, and so copy, every shared page
    return ""


def _count_gpus() -> int:
    """Count CUDA devices in a child: asking may initialise the driver, and forks cannot inherit that."""
    if "torch" not in sys.modules:
        code = "import torch; print(torch.cuda.device_count())"
        answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603
        return int(answer.stdout.strip() or 0)
    import torch

    if not torch.backends.cuda.is_built():
        return 0
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        count = 0
        with suppress(Exception):
            count = torch.cuda.device_count()
        os.write(writing, str(count).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer_of_child:
        count = int(answer_of_child.read() or 0)
    os.waitpid(pid, 0)
    return count


def main() -> None:
    """Serve the world whose directory is the first argument."""
    home = Home(sys.argv[1])
    os.environ[HOME_VARIABLE] = str(home.path)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.fspath(home.forkserver_socket))
    listener.listen(8)
    try:
        why = _warm_up()
        ready = Ready(not why, _count_gpus(), why)
    except BaseException:  # noqa: BLE001 - an interrupt, too, must not leave the directory
        # The log is about to go with the directory: the notebook reads it over its pipe.
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
        home.remove()
        raise SystemExit(1) from None
    ForkServer(home, ready, listener).serve()


if __name__ == "__main__":
    main()
