"""Sockets: one that listens in a directory, who is at its other end and whether it answers, and routes to machines."""

from __future__ import annotations

import os
import select
import socket
import struct
import sys
import time
from pathlib import Path

from ..world_dir import FULL

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: struct ucred of sys/socket.h
_LOCAL_PEERPID = 2  # sys/un.h of macOS

_ANY = 9
"""A port to which nothing is sent."""


def listening_at(path: Path) -> socket.socket:
    """Return a socket that listens at a path; one that is there is replaced.

    Those who connect look for the path, so it must not be there before this listens.

    Raises:
        OSError: it cannot be made.
    """
    unfinished = path.with_suffix(".part")
    unfinished.unlink(missing_ok=True)  # of a daemon that was killed just then
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(os.fspath(unfinished))
    except OSError as error:
        if error.errno not in FULL:
            raise
        path.unlink(missing_ok=True)  # where no further file can be made, it takes the place of the one before
        listener.bind(os.fspath(unfinished))
    listener.listen(512)
    unfinished.replace(path)
    return listener


def pid_of(connection: socket.socket) -> int:
    """Return the process that connected, or that listens where this process has connected.

    Raises:
        OSError: the system does not tell.
    """
    if sys.platform == "linux":
        return credentials_of(connection)[0]
    return connection.getsockopt(0, _LOCAL_PEERPID)


def credentials_of(connection: socket.socket) -> tuple[int, int, int]:
    """Return pid, user and group of the process at the other end; Linux only."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, group = _CREDENTIALS.unpack(credentials)
    return pid, user, group


def listener_at(path: Path, kind: int = socket.SOCK_STREAM) -> int:
    """Return the process that listens at a Unix socket of a kind; 0 if none does."""
    with socket.socket(socket.AF_UNIX, kind) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
            return pid_of(probe)
        except OSError:
            return 0


class Probe:
    """Sees whether who listens at a Unix socket, and speaks to all who connect, has stopped to do so.

    Args:
        path: of the socket.
        timeout: seconds without a word after which it has.
        pause: seconds between an answer and the next question.
    """

    def __init__(self, path: Path, timeout: float, pause: float) -> None:
        self._path = path
        self._timeout, self._pause = timeout, pause
        self._connection: socket.socket | None = None
        self._asked = self._next = 0.0

    def is_stuck(self) -> bool:
        """Return whether it has answered nothing for so long; who does not listen is not stuck. This does not wait."""
        now = time.monotonic()
        if not self._asked and now < self._next:
            return False
        self._asked = self._asked or now
        if self._is_answered():
            self.close()
            self._next = now + self._pause
        return bool(self._asked) and now - self._asked > self._timeout

    def _is_answered(self) -> bool:
        """Return whether the question that is open is answered, or nobody is there."""
        if self._connection is None:
            connection = socket.socket(socket.AF_UNIX)
            connection.setblocking(False)  # noqa: FBT003 - positional only
            try:
                connection.connect(os.fspath(self._path))
            except OSError as error:
                connection.close()
                return not isinstance(error, BlockingIOError)  # as many wait there as can
            self._connection = connection
        return bool(select.select([self._connection], [], [], 0)[0])

    def close(self) -> None:
        """Ask no more; `is_stuck` asks anew."""
        self._asked = 0.0
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def on_the_route_to(host: str) -> str:
    """Return the address of this machine from which the system would send to a host.

    Raises:
        OSError: the host is not known, or no way leads there.
    """
    ((family, _, _, _, where), *_) = socket.getaddrinfo(host, _ANY, type=socket.SOCK_DGRAM)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(where)  # nothing is sent
        return str(probe.getsockname()[0])
