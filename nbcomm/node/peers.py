"""Sockets: one that listens in a directory, who is at the other end of one, and the route to another machine."""

from __future__ import annotations

import os
import socket
import struct
import sys
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


def on_the_route_to(host: str) -> str:
    """Return the address of this machine from which the system would send to a host.

    Raises:
        OSError: the host is not known, or no way leads there.
    """
    ((family, _, _, _, where), *_) = socket.getaddrinfo(host, _ANY, type=socket.SOCK_DGRAM)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(where)  # nothing is sent
        return str(probe.getsockname()[0])
