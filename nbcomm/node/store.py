"""The store in which the ranks of a process group meet: the node's daemon serves it, over a Unix socket.

torch's own TCPStore listens on every interface and authenticates no client. This one is a socket in the world's private
directory: the file system decides who may connect.

A server greets each client with its name, which no other server has. A request is one msgpack array ``[verb, key,
value, …]`` after its length, and has one reply.
"""

from __future__ import annotations

import secrets
import socket
import struct
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from ..threads import keep
from .peers import listening_at

_LENGTH = struct.Struct("!I")
_AT_ONCE = 1 << 20
"""Bytes to allocate before they have arrived: a length may be wrong."""

_NAME = 16
"""Bytes of a server's name."""

_BREATH = 0.05
"""Seconds to pause when a connection cannot be accepted."""

_LAST = 1.0
"""Seconds in which the listening socket is surely closed."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


def receive_name(connection: socket.socket) -> bytes:
    """Wait for the name of the server; this comes before anything else."""
    return _exactly(connection, _NAME)


def send(connection: socket.socket, value: Any) -> None:
    """Send one request or reply."""
    body = _encode(value)
    connection.sendall(_LENGTH.pack(len(body)) + body)


def receive(connection: socket.socket) -> Any:
    """Wait for one request or reply."""
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    return _decode(_exactly(connection, length))


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
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
        self.over = threading.Event()
        """Whether it has to look again: nothing is lacking any more, or the store is closed."""


class StoreServer:
    """The holder of the keys, with one daemon thread per connection. Call `close` to free every waiting client."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._name = secrets.token_bytes(_NAME)
        self._keys: dict[str, bytes] = {}
        self._waiting: dict[str, set[_Waiting]] = {}
        """Who waits for a key that is not there: a change of one key costs nothing to those who wait for others."""
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._closed = False
        self._listener = listening_at(path)
        self._thread = keep("nbcomm-store", self._accept)

    def close(self) -> None:
        """Stop serving: every call in progress fails at its client."""
        self._path.unlink(missing_ok=True)
        with self._lock:
            self._closed = True
            doomed = [self._listener, *self._connections]
            for waiting in set().union(*self._waiting.values()):
                waiting.over.set()
        for connection in doomed:
            with suppress(OSError):  # the other end has already closed it
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(_LAST)  # where no further file can be made, the next store needs the place of this one

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if not self._closed:
                    time.sleep(_BREATH)  # no descriptor is free, for example; the client still waits then
                continue
            with self._lock:
                if self._closed:  # it was accepted while `close` looked at the others
                    connection.close()
                    break
                self._connections.add(connection)
            try:
                keep("nbcomm-store-client", partial(self._serve, connection), again=0)
            except RuntimeError:  # no thread is available: its client learns that from the end of the connection
                with self._lock:
                    self._connections.discard(connection)
                connection.close()
        self._listener.close()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                connection.sendall(self._name)
                while True:
                    verb, *arguments = receive(connection)
                    send(connection, getattr(self, f"_do_{verb}")(*arguments))
            except Exception:  # noqa: BLE001, S110 - the client has gone, or was no rank, and may have said anything
                pass  # it hears no answer, and its connection ends
            finally:
                with self._lock:
                    self._connections.discard(connection)

    def _put(self, key: str, value: bytes) -> None:
        """Set a key, and tell who has waited for it and lacks nothing more; the lock is held."""
        self._keys[key] = value
        for waiting in self._waiting.pop(key, ()):
            waiting.lacks.discard(key)
            if not waiting.lacks:
                waiting.over.set()

    def _do_set(self, key: str, value: bytes) -> None:
        with self._lock:
            self._put(key, value)

    def _do_multi_set(self, keys: list[str], values: list[bytes]) -> None:
        with self._lock:
            for key, value in zip(keys, values, strict=True):
                self._put(key, value)

    def _do_wait(self, keys: list[str], timeout: float) -> list[bytes] | None:
        until = time.monotonic() + timeout
        while True:  # once, unless a key is deleted while others are waited for
            with self._lock:
                if self._closed:
                    raise ConnectionError("The store is closed.")
                waiting = _Waiting({key for key in keys if key not in self._keys})
                if not waiting.lacks:
                    return [self._keys[key] for key in keys]
                for key in waiting.lacks:
                    self._waiting.setdefault(key, set()).add(waiting)
            if not waiting.over.wait(max(0.0, until - time.monotonic())) and self._give_up(waiting):
                return None

    def _give_up(self, waiting: _Waiting) -> bool:
        """Let nobody wait for these keys any more; return False if they have just come."""
        with self._lock:
            for key in waiting.lacks:
                others = self._waiting[key]
                others.discard(waiting)
                if not others:
                    del self._waiting[key]
            return bool(waiting.lacks)

    def _do_add(self, key: str, amount: int) -> int:
        with self._lock:
            value = int(self._keys.get(key, b"0")) + amount
            self._put(key, str(value).encode())
            return value

    def _do_append(self, key: str, value: bytes) -> None:
        with self._lock:
            self._put(key, self._keys.get(key, b"") + value)

    def _do_compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        with self._lock:
            # torch's rule: an absent key is set only when nothing was expected, else `expected` is returned.
            if self._keys.get(key, b"") == expected:
                self._put(key, desired)
            return self._keys.get(key, expected)

    def _do_check(self, keys: list[str]) -> bool:
        with self._lock:
            return all(key in self._keys for key in keys)

    def _do_delete(self, key: str) -> bool:
        with self._lock:
            return self._keys.pop(key, None) is not None

    def _do_count(self) -> int:
        with self._lock:
            return len(self._keys)
