"""Gloo's connections, distinguished from all other sockets of the process: shutting them frees those who wait on them.

A rank that waits in a gloo collective cannot be freed otherwise: torch has no abort that reaches it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from .c10d import dist, hash_of

THREADS = 2
"""Threads of a gloo group: as many as in torch's own options for one device; DDP's logger shows the number."""

_LOOPBACK = "127.0.0.1"


class GlooDevice:
    """The address of this process's gloo connections, which nothing else uses.

    Linux listens on all of 127/8, so a world takes an address of its own there. macOS listens on 127.0.0.1 only, so
    there gloo's sockets are those that appear while a group forms.

    Args:
        name: the world's name; ranks of one world share the address, and two worlds hardly ever do.
        reserve: take an address of its own if the system allows it.
    """

    def __init__(self, name: str, *, reserve: bool = True) -> None:
        reserved = reserve and sys.platform == "linux"
        digest = hash_of(name)
        # 127.64–127.191: far from 127.0.0.1 and from the addresses of resolvers (127.0.0.53).
        self.address = (
            f"127.{64 + (digest >> 16) % 128}.{(digest >> 8) & 255}.{1 + digest % 254}" if reserved else _LOOPBACK
        )
        self._reserved = reserved
        self._noted: dict[int, int] = {}
        """Sockets that appeared while a group formed: by descriptor, the inode, because descriptors are reused."""
        self._device: Any = None

    def options(self, timeout: timedelta) -> Any:
        """Return options for a `ProcessGroupGloo` on this address."""
        if self._device is None:
            self._device = dist.ProcessGroupGloo.create_device(hostname=self.address)
        options = dist.ProcessGroupGloo._Options()
        options._timeout = timeout
        options._threads = THREADS
        options._devices = [self._device]  # one for all groups: each would bring a thread and descriptors
        return options

    @contextlib.contextmanager
    def noting(self, *, elsewhere: bool = False) -> Iterator[None]:
        """Record the sockets that appear while a group forms in the block, if the address does not identify them.

        Args:
            elsewhere: whether torch makes the group, on an address of its own choice.
        """
        if self._reserved and not elsewhere:
            yield
            return
        before = _descriptors()
        try:
            yield
        finally:
            for number in _descriptors() - before:
                with contextlib.suppress(OSError):  # it is closed by now
                    self._noted[number] = os.fstat(number).st_ino

    def shut_connections(self) -> int:
        """Shut every gloo connection of this process: a wait on one, at either end, gets an error.

        The sockets are shut, but not closed, because gloo closes its sockets itself.

        Returns:
            The number of shut connections.
        """
        shut = 0
        for connection in self._connections():
            with contextlib.suppress(OSError):  # it has just ended
                # For reading only: gloo notices that at once, and closes the socket. With writing shut too, gloo could
                # first fail to write an answer to the other end; it would forget that, and the wait for the message.
                connection.shutdown(socket.SHUT_RD)
                shut += 1
        self._noted.clear()
        return shut

    def has_connections(self) -> bool:
        """Tell whether gloo has connections that `shut_connections` would find."""
        return any(True for _ in self._connections())

    def _connections(self) -> Iterator[socket.socket]:
        """Yield each gloo connection as a copy of its descriptor, which is closed when the caller takes the next."""
        noted = dict(self._noted)
        for number in _descriptors() if self._reserved else noted:
            with contextlib.ExitStack() as opened:
                try:
                    connection = self._open(number, opened, noted.get(number))
                except OSError:
                    continue  # it is closed by now, or listens: gloo ends the process without its listening socket
                if connection is not None:
                    yield connection

    def _open(self, number: int, opened: contextlib.ExitStack, noted: int | None) -> socket.socket | None:
        status = os.fstat(number)
        if not stat.S_ISSOCK(status.st_mode):
            return None
        duplicate = os.dup(number)
        try:
            connection = opened.enter_context(socket.socket(fileno=duplicate))
        except OSError:
            os.close(duplicate)
            raise
        if connection.family != socket.AF_INET or connection.type != socket.SOCK_STREAM:
            return None
        ends = connection.getpeername()[0], connection.getsockname()[0]
        ours = self._reserved and self.address in ends
        return connection if ours or (noted == status.st_ino and _LOOPBACK in ends) else None


def _descriptors() -> set[int]:
    folder = Path("/proc/self/fd") if sys.platform == "linux" else Path("/dev/fd")
    return {int(entry.name) for entry in folder.iterdir()}
