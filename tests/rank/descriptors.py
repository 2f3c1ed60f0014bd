"""What this process holds open."""

from __future__ import annotations

import os
import re
import socket
from contextlib import suppress
from pathlib import Path


def descriptors() -> list[str]:
    """What each is: a file's path, ``pipe``, ``anon_inode:[eventpoll]``, or a socket's kind and other end."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists them
            name = re.sub(r":\[\d+\]$", "", str(descriptor.readlink()))
            found.append(_told(int(descriptor.name)) if name == "socket" else name)
    return sorted(found)


def _told(descriptor: int) -> str:
    try:
        with socket.socket(fileno=os.dup(descriptor)) as one:
            if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                return f"socket: {one.family.name} listens"
            other = one.getpeername()
            return f"socket: {one.family.name} to {other if one.family == socket.AF_UNIX else other[0]}"
    except OSError as error:
        return f"socket: {error.strerror}"
