"""The store in which the ranks of a process group meet: the node's daemon serves it, in its one loop.

torch's own TCPStore listens on every interface and authenticates no client. This one is reached at a socket in the
world's private directory, where the file system decides who may connect, and from other nodes at the daemon's listener.

A server greets each client with its name, which no other server has. A request is one msgpack array ``[verb, key,
value, …]`` after its length, and has one reply.
"""

from __future__ import annotations

import secrets
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from .peers import listening_at

_LENGTH = struct.Struct("!I")
_AT_ONCE = 1 << 18
"""Bytes that are read from a connection in one turn."""

_NAME = 16
"""Bytes of a server's name."""

REFUSED = b""
"""The answer to a rank of another node that asks a store which it has not met, or asks for what cannot be done."""

to_bytes = msgspec.msgpack.Encoder().encode
from_bytes = msgspec.msgpack.Decoder().decode

Reply = Callable[[Any], None]


def receive_name(connection: socket.socket) -> bytes:
    """Wait for the name of the server; this comes before anything else."""
    return _exactly(connection, _NAME)


def send(connection: socket.socket, value: Any) -> None:
    """Send one request or reply."""
    connection.sendall(_packed(value))


def receive(connection: socket.socket) -> Any:
    """Wait for one request or reply."""
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    return from_bytes(_exactly(connection, length))


def _packed(value: Any) -> bytes:
    body = to_bytes(value)
    return _LENGTH.pack(len(body)) + body


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:  # in parts that are allocated when they arrive: a length may be wrong
        part = connection.recv(min(size - len(parts), _AT_ONCE))
        if not part:
            raise ConnectionError("The other end of the store's connection is gone.")
        parts += part
    return bytes(parts)


class _Waiting:
    """A client that waits for keys.

    Args:
        lacks: those that are not there yet.
    """

    def __init__(self, lacks: set[str]) -> None:
        self.lacks = lacks
        self.keys: Sequence[str] = ()
        self.until = 0.0
        self.client: object = None
        self.reply: Reply


class Store:
    """The keys, and who waits for them. It never waits itself: a reply is given when it is due.

    Attributes:
        name: no other store has it.
    """

    def __init__(self) -> None:
        self.name = secrets.token_bytes(_NAME)
        self._keys: dict[str, bytes] = {}
        self._waiting: dict[str, set[_Waiting]] = {}
        """Who waits for a key that is not there: a change of one key costs nothing to those who wait for others."""
        self._all: set[_Waiting] = set()
        self._lacking_nothing: list[_Waiting] = []

    def ask(self, request: Any, client: object, reply: Reply) -> None:
        """Do what is asked.

        Args:
            request: ``[verb, key, value, …]``.
            client: who asks.
            reply: called with the answer, now or later.

        Raises:
            Exception: it was no request, or cannot be done.
        """
        verb, *arguments = request
        try:
            if verb == "wait":
                self._wait(client, reply, *arguments)
            else:
                reply(getattr(self, f"_do_{verb}")(*arguments))
        finally:  # whose keys are there now; a request that fails may have set some
            while self._lacking_nothing:
                self._look_again(self._lacking_nothing.pop(0))

    @property
    def due(self) -> float:
        """When the first of those who wait gives up, by `time.monotonic`; infinity if nobody waits."""
        return min((waiting.until for waiting in self._all), default=float("inf"))

    def give_up(self) -> None:
        """Answer those who have waited for too long."""
        if self._all:
            now = time.monotonic()
            for waiting in [each for each in self._all if each.until <= now]:
                self._forget(waiting)
                waiting.reply(None)

    def forget(self, client: object) -> None:
        """Answer a client no more: it has gone."""
        for waiting in [each for each in self._all if each.client is client]:
            self._forget(waiting)

    def _put(self, key: str, value: bytes) -> None:
        """Set a key, and note who has waited for it and lacks nothing more."""
        self._keys[key] = value
        for waiting in self._waiting.pop(key, ()):
            waiting.lacks.discard(key)
            if not waiting.lacks:
                self._lacking_nothing.append(waiting)

    def _wait(self, client: object, reply: Reply, keys: list[str], timeout: float) -> None:
        waiting = _Waiting({key for key in keys if key not in self._keys})
        waiting.keys, waiting.client, waiting.reply = keys, client, reply
        waiting.until = time.monotonic() + timeout
        self._all.add(waiting)
        self._settle(waiting)

    def _look_again(self, waiting: _Waiting) -> None:
        """Answer one who lacked nothing a moment ago, unless a key was deleted while others were waited for."""
        if waiting in self._all:
            waiting.lacks.update(key for key in waiting.keys if key not in self._keys)
            self._settle(waiting)

    def _settle(self, waiting: _Waiting) -> None:
        for key in waiting.lacks:
            self._waiting.setdefault(key, set()).add(waiting)
        if not waiting.lacks:
            self._all.discard(waiting)
            waiting.reply([self._keys[key] for key in waiting.keys])

    def _forget(self, waiting: _Waiting) -> None:
        self._all.discard(waiting)
        for key in waiting.lacks:
            others = self._waiting[key]
            others.discard(waiting)
            if not others:
                del self._waiting[key]

    def _do_set(self, key: str, value: bytes) -> None:
        self._put(key, value)

    def _do_multi_set(self, keys: list[str], values: list[bytes]) -> None:
        for key, value in zip(keys, values, strict=True):
            self._put(key, value)

    def _do_add(self, key: str, amount: int) -> int:
        value = int(self._keys.get(key, b"0")) + amount
        self._put(key, str(value).encode())
        return value

    def _do_append(self, key: str, value: bytes) -> None:
        self._put(key, self._keys.get(key, b"") + value)

    def _do_compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        # torch's rule: an absent key is set only when nothing was expected, else `expected` is returned.
        if self._keys.get(key, b"") == expected:
            self._put(key, desired)
        return self._keys.get(key, expected)

    def _do_check(self, keys: list[str]) -> bool:
        return all(key in self._keys for key in keys)

    def _do_delete(self, key: str) -> bool:
        return self._keys.pop(key, None) is not None

    def _do_count(self) -> int:
        return len(self._keys)


class _Connection:
    """A client's connection, which never makes the others wait."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)  # noqa: FBT003 - positional only
        self.end = end
        self._read = bytearray()
        self._unsent = bytearray()

    @property
    def events(self) -> int:
        """What to wait for."""
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)

    def requests(self) -> Iterator[Any]:
        """Read what has come.

        Raises:
            ConnectionError: the other end has gone.
            OSError: the connection is broken.
            msgspec.DecodeError: this is no request.
        """
        with suppress(BlockingIOError):
            part = self.end.recv(_AT_ONCE)
            if not part:
                raise ConnectionError("The client has gone.")
            self._read += part
        while len(self._read) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._read)[0]
            if len(self._read) < end:
                break
            request = bytes(self._read[_LENGTH.size : end])
            del self._read[:end]
            yield from_bytes(request)

    def write(self, data: bytes = b"") -> None:
        """Write on, behind what waits.

        Raises:
            OSError: the connection is broken.
        """
        self._unsent += data
        with suppress(BlockingIOError):
            while self._unsent:
                del self._unsent[: self.end.send(self._unsent)]


class StoreServer:
    """Serves a store at a Unix socket. Its descriptor is ready when `serve` has something to do.

    Args:
        path: of the socket.
        store: holds the keys.

    Raises:
        OSError: the socket cannot be made.
    """

    def __init__(self, path: Path, store: Store) -> None:
        self._path = path
        self._store = store
        self._selector = selectors.DefaultSelector()  # one descriptor for the owner's loop, however many clients
        try:
            self._listener = listening_at(path)
        except BaseException:
            self._selector.close()
            raise
        self._listener.setblocking(False)  # noqa: FBT003 - positional only
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._closed = False

    def fileno(self) -> int:
        """Return what to poll."""
        return self._selector.fileno()

    def serve(self) -> None:
        """Handle what has come. What a client does wrong ends its own connection.

        Raises:
            OSError: a client cannot be accepted: no descriptor is free, for example. It waits.
        """
        accepts = False
        for key, events in self._selector.select(0):
            if key.data is None:
                accepts = True
                continue
            try:
                if events & selectors.EVENT_WRITE:
                    self._write(key.data)
                if events & selectors.EVENT_READ:
                    for request in key.data.requests():
                        self._store.ask(request, key.data, self._answering(key.data))
            except Exception:  # noqa: BLE001 - it has gone, or was no rank, and may have said anything
                self._end(key.data)
        if accepts:
            self._accept()

    def close(self) -> None:
        """Stop serving: every call in progress fails at its client."""
        if self._closed:
            return
        self._closed = True
        self._path.unlink(missing_ok=True)
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                self._end(key.data)
        self._listener.close()
        self._selector.close()

    def _accept(self) -> None:
        with suppress(BlockingIOError):
            while True:
                end, _ = self._listener.accept()
                connection = _Connection(end)
                self._selector.register(end, selectors.EVENT_READ, connection)
                self._answer(connection, self._store.name)

    def _answering(self, connection: _Connection) -> Reply:
        return lambda value: self._answer(connection, _packed(value))

    def _answer(self, connection: _Connection, data: bytes) -> None:
        """Send to a client; a fault ends this connection and not that of who has set a key for it."""
        try:
            self._write(connection, data)
        except OSError:
            self._end(connection)

    def _write(self, connection: _Connection, data: bytes = b"") -> None:
        before = connection.events
        connection.write(data)
        if connection.events != before:
            self._selector.modify(connection.end, connection.events, connection)

    def _end(self, connection: _Connection) -> None:
        self._store.forget(connection)
        with suppress(KeyError, ValueError):  # it has ended already
            self._selector.unregister(connection.end)
        connection.end.close()
