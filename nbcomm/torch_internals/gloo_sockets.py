"""Gloo's connections, told from all other sockets of the process: shutting them frees whoever waits on them.

A rank that waits in a gloo collective cannot be freed otherwise: no abort of torch's reaches it.
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
"""Of a gloo group: as many as where torch makes its options itself, for one device; DDP's logger tells how many."""

_LOOPBACK = "127.0.0.1"


class GlooDevice:
    """The address on which this process's gloo connections are made, known by nothing else.

    Linux answers on all of 127/8, so a world takes an address of its own there. macOS answers on 127.0.0.1 only;
    there gloo's sockets are those that appear while a group forms.

    Args:
        name: the world's name; ranks of one world share the address, and two worlds hardly ever do.
        reserve: take an address of its own if the system has one.
    """

    def __init__(self, name: str, *, reserve: bool = True) -> None:
        reserved = reserve and sys.platform == "linux"
        digest = hash_of(name)
        # 127.64–127.191: far from 127.0.0.1 and from what resolvers take for themselves (127.0.0.53).
        self.address = (
            f"127.{64 + (digest >> 16) % 128}.{(digest >> 8) & 255}.{1 + digest % 254}" if reserved else _LOOPBACK
        )
        self._reserved = reserved
        self._noted: dict[int, int] = {}
        """Sockets that appeared while a group formed: by descriptor, the inode, for descriptors are given anew."""
        self._device: Any = None

    def options(self, timeout: timedelta) -> Any:
        """Options for a `ProcessGroupGloo` on this address."""
        if self._device is None:
            self._device = dist.ProcessGroupGloo.create_device(hostname=self.address)
        options = dist.ProcessGroupGloo._Options()
        options._timeout = timeout
        options._threads = THREADS
        options._devices = [self._device]  # one for all groups: each would bring a thread and descriptors
        return options

    @contextlib.contextmanager
    def noting(self, *, elsewhere: bool = False) -> Iterator[None]:
        """While a group forms, note which sockets appear, if the address does not tell.

        Args:
            elsewhere: the group is made by torch, on an address of its own choice.
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
        """Shut every gloo connection of this process: whoever waits on one, at either end, gets an error.

        The sockets are shut and never closed: they are gloo's, which closes them itself.

        Returns:
            How many were shut.
        """
        shut = 0
        for connection in self._connections():
            with contextlib.suppress(OSError):  # it has just ended
                # For reading only: gloo notices at once, and closes it. But a write of its own that failed before that,
                # in answer to the other end, it would forget, and with it whoever waits for that message.
                connection.shutdown(socket.SHUT_RD)
                shut += 1
        self._noted.clear()
        return shut

    def has_connections(self) -> bool:
        """Whether gloo has connections that `shut_connections` would find."""
        return any(True for _ in self._connections())

    def _connections(self) -> Iterator[socket.socket]:
        """Each connection of gloo's, for as long as the caller looks at it; a copy of its descriptor."""
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
