"""The ways of a rank to the store: a Unix socket on the store's own node, the listener of its daemon from others.

A way makes connections. ``meet`` connects, and returns the name of the store; it raises FileNotFoundError if none has
been there, and ConnectionRefusedError if the process that served it has ended. ``ask`` sends a request, and waits for
the reply. One thread uses a connection at a time; any may call ``free``, which lets what waits there fail.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...node.dealers import Connection
from ...node.store import REFUSED, from_bytes, receive, receive_name, send, to_bytes
from ...protocol import Listener


class UnixWay:
    """At a socket of this node.

    Args:
        path: of it.

    Attributes:
        where: it is, in words.
        pause: seconds between two tries to reach a server that is not up yet.
    """

    pause = 0.002

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        self._path = path

    def make(self) -> _UnixConnection:
        """Return a connection, which is not made yet."""
        return _UnixConnection(self._path)


class _UnixConnection:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX)

    def meet(self) -> bytes:
        self._socket.connect(os.fspath(self._path))
        return receive_name(self._socket)

    def ask(self, request: Sequence[Any]) -> Any:
        send(self._socket, request)
        return receive(self._socket)

    def lives(self) -> bool:
        try:
            self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True  # it has nothing to say
        except OSError:
            pass
        return False

    def free(self) -> None:
        with suppress(OSError):  # it was closed a moment ago
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


class FarWay:
    """At the listener of another node; attributes as for `UnixWay`.

    Args:
        connect: makes a connection by this rank's key.
        to: the listener.
        generation: whose store it is.
    """

    pause = 0.02

    def __init__(self, connect: Callable[[Listener], Connection], to: Listener, generation: int) -> None:
        self.where = to.address
        self._connect = connect
        self._to = to
        self._generation = generation

    def make(self) -> _FarConnection:
        """Return a connection, which is not made yet."""
        return _FarConnection(self._connect(self._to), self._generation)


class _FarConnection:
    def __init__(self, connection: Connection, generation: int) -> None:
        self._connection = connection
        self._generation = generation
        self.free, self.close, self.lives = connection.free, connection.close, connection.look

    def meet(self) -> bytes:
        try:
            answer = self._answer(["meet", self._generation])
        except ConnectionError:
            if self._connection.connected or not self._connection.lost:
                raise
            # Nobody listens there, or the daemon does not know this rank yet: the next one is told.
            raise ConnectionRefusedError("its daemon refused the connection") from None
        if answer == REFUSED:
            raise FileNotFoundError("the daemon does not serve it")
        name: bytes = from_bytes(answer)
        return name

    def ask(self, request: Sequence[Any]) -> Any:
        answer = self._answer(request)
        if answer == REFUSED:
            raise ConnectionError("its daemon refused the request")
        return from_bytes(answer)

    def _answer(self, request: Sequence[Any]) -> bytes:
        self._connection.send([b"", to_bytes(request)])
        answer = self._connection.receive()
        assert answer is not None  # noqa: S101 - for mypy: it waits for ever
        return answer[0]


StoreWay = _UnixConnection | _FarConnection
WayToStore = UnixWay | FarWay
