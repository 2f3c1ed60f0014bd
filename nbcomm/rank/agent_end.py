"""The rank's end of the connection to its node's agent: a Unix socket in the world's directory."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from ..protocol.framing import OTHER, FramedSocket, Message

_RETRY = 50
"""Milliseconds between two tries to connect: the fork server starts another agent in a few."""


class AgentEnd:
    """A connection that is made again when it is lost; one thread uses it.

    Args:
        path: of the agent's socket.
        woken: a socket that ends a wait when something can be read from it.
    """

    def __init__(self, path: Path, woken: socket.socket) -> None:
        self._path = path
        self._woken = woken
        self._framed: FramedSocket | None = None

    @property
    def connected(self) -> bool:
        """Whether there is a connection, as far as is known."""
        return self._framed is not None

    @property
    def has_sent(self) -> bool:
        """Whether all that was sent has left this process."""
        return self._framed is not None and not self._framed.waits

    def connect(self) -> bool:
        """Connect if there is no connection; return whether a new one was made."""
        if self._framed is not None:
            return False
        with ExitStack() as failing:
            try:
                connection = failing.enter_context(socket.socket(socket.AF_UNIX))
                connection.setblocking(False)  # noqa: FBT003 - positional only
                connection.connect(os.fspath(self._path))  # at once, or not at all
            except OSError:
                return False
            failing.pop_all()
        self._framed = FramedSocket(connection)
        return True

    def close(self) -> None:
        """Close the connection; the next `connect` makes another one."""
        if self._framed is not None:
            self._framed.close()
            self._framed = None

    def wait(self, milliseconds: int) -> None:
        """Wait until the agent has sent something, takes more, or the thread is woken."""
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        if self._framed is not None:
            poll.register(self._framed, select.POLLIN | (select.POLLOUT if self._framed.waits else 0))
        else:
            milliseconds = min(milliseconds, _RETRY)
        poll.poll(milliseconds)
        with suppress(BlockingIOError):
            self._woken.recv(4096)

    def send(self, frames: Sequence[Any], kind: int = OTHER) -> None:
        """Send a message; if there is no connection, it is lost."""
        if self._framed is not None:
            try:
                self._framed.send(frames, kind)
            except OSError:
                self.close()

    def receive(self) -> list[Message]:
        """Return the messages that have come, and write what waits."""
        if self._framed is None:
            return []
        try:
            self._framed.flush()
            return self._framed.receive() or []
        except (EOFError, OSError, MemoryError):  # the next connection repeats what did not come
            self.close()
            return []
