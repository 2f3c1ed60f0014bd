"""The process that has imported torch, and forks: a child of the node's daemon.

A rank is a fork of it, which is ready in a tenth of a second and shares most of its memory. It has one thread, because
after a fork the child has only the thread that called it, and every lock that another thread held stays locked for
ever. So it never runs a tensor operation, never uses CUDA, opens no ZeroMQ context, and only waits for what it is to
fork. Where forking is not possible (macOS), it tells so and ends, and the daemon starts the processes plainly.

It owns nothing. What it is to fork is forked by a fork of its own, which then ends, so the system makes the processes
children of the daemon (its *subreaper*): that learns their ends by itself, whether the zygote lives, was stopped or was
killed, and replaces it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn

import msgspec

from ..protocol import Failed, Ready, Report, Start, Started
from ..protocol.codec import decode_report, encode
from ..world_dir import WorldDir
from .processes import child, fork_signals, parenthood
from .processes.exit_status import how_it_ended
from .processes.warmup import prepare

_LARGEST = 1 << 16
"""Bytes of a report, and of what its texts may have."""

_AGAIN, _LONGEST = 0.2, 5.0
"""Seconds between two starts, and at most: zygotes that end at once must not occupy a core, or fill the disk."""

_orders: msgspec.msgpack.Decoder[list[Start]] = msgspec.msgpack.Decoder(list[Start])


class Zygote:
    """The daemon's end: it starts zygotes, one after another, and gives them orders.

    Args:
        home: the world's directory.
        let_go: closes, in a fork, what only the daemon uses.

    Attributes:
        ready: what the first one has reported when its imports were done; None before.
        channel: the socket to the present one; None while there is none.
        pid: its process; 0 when it has been waited for.
    """

    def __init__(self, home: WorldDir, let_go: Callable[[], None] = lambda: None) -> None:
        self.ready: Ready | None = None
        self.channel: socket.socket | None = None
        self.pid = 0
        self._home = home
        self._let_go = let_go
        self._is_ready = False
        self._due = self._pause = 0.0
        self._popen: subprocess.Popen[bytes] | None = None

    @property
    def forks(self) -> bool:
        """Whether it forks what it gets now."""
        return self._is_ready and self.channel is not None

    @property
    def backoff(self) -> float | None:
        """Seconds until another one is to be started; None if there is one, or none is needed."""
        if self.channel is not None or (self.ready is not None and not self.ready.forks):
            return None
        return max(0.0, self._due - time.monotonic())

    def fork(self, prepared: Callable[[], Ready] = prepare) -> None:
        """Start the first one as a fork of this process, which must have one thread only.

        Args:
            prepared: makes it ready for forks.

        Raises:
            OSError: it could not be started.
        """
        parent = os.getpid()
        ours, theirs = _pair()
        try:
            self.pid = os.fork()
            if not self.pid:
                ours.close()
                self._let_go()
                _become(self._home, theirs, prepared, parent)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._begun(ours)

    def start(self) -> None:
        """Start one as a program of its own: this process has threads by now.

        Raises:
            OSError: it could not be started; call this again after `backoff`.
        """
        self._due = time.monotonic() + _AGAIN
        ours, theirs = _pair()
        with theirs:
            try:
                self._popen = subprocess.Popen(  # noqa: S603 - our own module
                    [
                        sys.executable,
                        "-m",
                        __name__,
                        os.fspath(self._home.path),
                        str(theirs.fileno()),
                        str(os.getpid()),
                    ],
                    pass_fds=[theirs.fileno()],
                )
            except BaseException:
                ours.close()
                raise
        self.pid = self._popen.pid
        self._begun(ours)

    def _begun(self, channel: socket.socket) -> None:
        self._pause = min(_LONGEST, 2 * self._pause or _AGAIN)  # until it is ready
        self._due = time.monotonic() + self._pause
        channel.setblocking(False)  # noqa: FBT003 - positional only
        self.channel = channel

    def order(self, orders: Sequence[Start]) -> None:
        """Let it fork processes; it reports each as `Started` or `Failed`.

        They go as a file in memory: their environments may be larger than a message, and the daemon must not wait for a
        zygote that was stopped.

        Raises:
            OSError: it has ended, or there is no room.
        """
        assert self.channel is not None  # noqa: S101 - for mypy
        descriptor = os.memfd_create("orders", os.MFD_CLOEXEC)
        try:
            with os.fdopen(descriptor, "wb", closefd=False) as file:
                file.write(msgspec.msgpack.encode(orders))
            socket.send_fds(self.channel, [b"!"], [descriptor])
        finally:
            os.close(descriptor)

    def receive(self) -> list[Report] | None:
        """Return what it reports; None if it has ended, with all that it had begun."""
        assert self.channel is not None  # noqa: S101 - for mypy
        reports: list[Report] = []
        while True:
            try:
                said = self.channel.recv(_LARGEST)
            except BlockingIOError:
                return reports
            except OSError:
                said = b""
            if not said:
                if reports:
                    return reports  # they count; the next call tells its end
                self.lose()
                return None
            report = decode_report(said)
            if isinstance(report, Ready):
                self.ready = self.ready or report
                self._is_ready, self._pause = report.forks, 0.0
            reports.append(report)

    def lose(self) -> None:
        """Kill it, if it lives, and close the channel."""
        self.kill()
        if self.channel is not None:
            self.channel.close()
        if self._popen is not None:
            self._popen.returncode = 0  # whoever reaps it is not `subprocess`
        self.channel, self._popen, self._is_ready = None, None, False

    def kill(self) -> None:
        """End it: it does not answer, or is needed no more. Its channel tells when it has ended."""
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def _pair() -> tuple[socket.socket, socket.socket]:
    # Messages keep their bounds, and the end of all that have the other end is told, which datagrams do not.
    kind = socket.SOCK_SEQPACKET if sys.platform == "linux" else socket.SOCK_DGRAM
    return socket.socketpair(socket.AF_UNIX, kind)


# ── its process ─────────────────────────────────────────────────────────────────────────────────────


def _become(home: WorldDir, channel: socket.socket, prepared: Callable[[], Ready], parent: int) -> NoReturn:
    """Turn this process into a zygote; it does not return."""
    with child.to_the_end():
        parenthood.die_with(parent)
        fork_signals.let_through()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        ready = prepared()
        channel.setblocking(True)  # noqa: FBT003 - positional only
        channel.send(encode(ready))
        while ready.forks:
            descriptors: list[int] = []
            with suppress(ConnectionError):
                _, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
            if not descriptors:
                break  # the daemon has ended
            with os.fdopen(descriptors[0], "rb") as file:
                file.seek(0)
                orders = _orders.decode(file.read())
            _obey(orders, home, channel)
    raise AssertionError  # it has ended


def _obey(orders: Sequence[Start], home: WorldDir, channel: socket.socket) -> None:
    """Fork processes by a fork that ends, and wait for that; what it leaves undone has failed."""
    with suppress(OSError):  # the disk is full
        sys.stdout.flush()
        sys.stderr.flush()
    try:
        pid = os.fork()
    except OSError as error:  # too many processes, no memory
        _refuse(orders, str(error), channel)
        return
    if not pid:
        with child.to_the_end():
            for order in orders:
                _fork(order, home, channel)
    _, status = os.waitpid(pid, 0)
    if status:  # what it has reported before is done: an answer that follows changes nothing
        _refuse(orders, f"what was to fork it {how_it_ended(os.waitstatus_to_exitcode(status))}", channel)


def _refuse(orders: Sequence[Start], why: str, channel: socket.socket) -> None:
    for order in orders:
        channel.send(encode(Failed(order.number, why)))


def _fork(order: Start, home: WorldDir, channel: socket.socket) -> None:
    try:
        pid = os.fork()
    except OSError as error:
        channel.send(encode(Failed(order.number, str(error))))
        return
    if not pid:
        child.become(order, home.log_of(order.key), channel.close)
    told = encode(Started(order.number, order.key, pid, order.public))
    with suppress(OSError):  # the disk is full
        home.note_start(order.number, told)
    try:
        channel.send(told)
    except OSError:  # the daemon has ended, and the next one starts another process for this order
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(OSError):
            home.forget_start(order.number)


def main() -> None:
    """Be a zygote; the arguments are the world's directory, the descriptor of the channel, and the daemon's pid."""
    home, descriptor, parent = WorldDir(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    _become(home, socket.socket(fileno=descriptor), prepare, parent)


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        traceback.print_exc()
        raise
