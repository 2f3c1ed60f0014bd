"""Who is at the other end of a Unix socket."""

from __future__ import annotations

import os
import socket
import struct
import sys
from pathlib import Path

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: struct ucred of sys/socket.h
_LOCAL_PEERPID = 2  # sys/un.h of macOS


def pid_of(connection: socket.socket) -> int:
    """Return the process that connected, or that listens where this process has connected.

    Raises:
        OSError: the system does not tell.
    """
    if sys.platform == "linux":
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid: int = _CREDENTIALS.unpack(credentials)[0]
        return pid
    return connection.getsockopt(0, _LOCAL_PEERPID)


def listener_at(path: Path) -> int:
    """Return the process that listens at a Unix socket; 0 if none does."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
            return pid_of(probe)
        except OSError:
            return 0
