"""The rendezvous of a process group over a Unix socket.

torch's own TCPStore listens on every interface and authenticates no client. This one is a socket in the world's private
directory: the file system decides who may connect.

Rank 0's process serves; each rank, rank 0 too, is a client. A request is one msgpack array ``[verb, key, value, …]``
after its length, and has one reply. A client opens a connection per simultaneous call, because torch calls a store from
several threads at once and a ``wait`` may last long.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections import deque
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch.distributed as dist

from ...threads import keep

_LENGTH = struct.Struct("!I")
_AT_ONCE = 1 << 20
"""Bytes to allocate before they have arrived: a length may be wrong."""

_BREATH = 0.05
"""Seconds to pause when a connection cannot be accepted."""

_RETRY = 0.002
"""Seconds between two tries to reach a server that is not up yet."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


def _send(connection: socket.socket, value: Any) -> None:
    body = _encode(value)
    connection.sendall(_LENGTH.pack(len(body)) + body)


def _receive(connection: socket.socket) -> Any:
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
        self._keys: dict[str, bytes] = {}
        self._waiting: dict[str, set[_Waiting]] = {}
        """Who waits for a key that is not there: a change of one key costs nothing to those who wait for others."""
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._closed = False
        self._listener = socket.socket(socket.AF_UNIX)
        # Clients look for the final name: it must not exist before the server listens.
        unfinished = path.with_suffix(".part")
        self._listener.bind(os.fspath(unfinished))
        self._listener.listen(512)
        unfinished.rename(path)
        keep("nbcomm-store", self._accept)

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
                while True:
                    verb, *arguments = _receive(connection)
                    _send(connection, getattr(self, f"_do_{verb}")(*arguments))
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


class _Connections:
    """A client's connections to one server, until it is released. No lock: it might be held where a cell forks."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._idle: deque[socket.socket] = deque()
        self._open: set[socket.socket] = set()
        self._over = False

    def ask(self, request: tuple[Any, ...], patience: float) -> Any:
        """Send a request, and return the reply.

        Args:
            request: what the server understands.
            patience: seconds for the server to come up.

        Raises:
            DistNetworkError: the server has gone, or was let go.
            DistStoreError: none came up.
        """
        try:
            connection, fresh = self._idle.pop(), False
        except IndexError:
            connection, fresh = socket.socket(socket.AF_UNIX), True
            self._open.add(connection)
        try:
            if fresh:
                self._connect(connection, patience)
            _send(connection, request)
            reply = _receive(connection)
        except BaseException as error:
            self._drop(connection)
            if isinstance(error, OSError):
                raise dist.DistNetworkError(f"The store at {self._path} is gone: {error}") from None
            raise
        self._idle.append(connection)
        if self._over:  # `end` may have looked already
            self.rest()
        return reply

    def _connect(self, connection: socket.socket, patience: float) -> None:
        deadline = time.monotonic() + patience
        while not self._over:
            try:
                connection.connect(os.fspath(self._path))
            except FileNotFoundError:
                # Ranks join at the same time: rank 0's server may start a moment later.
                if time.monotonic() > deadline:
                    raise dist.DistStoreError(f"No store started at {self._path} within {patience:g} s.") from None
                time.sleep(_RETRY)
            else:
                break
        if self._over:  # also if `end` found it before it was connected, and so could not shut it
            raise dist.DistNetworkError(f"The store at {self._path} is closed.")

    def _drop(self, connection: socket.socket) -> None:
        self._open.discard(connection)
        connection.close()

    def rest(self) -> None:
        """Close the idle connections."""
        with suppress(IndexError):
            while True:
                self._drop(self._idle.pop())

    def end(self) -> None:
        """Release the server: fail every call in progress, from any thread, and every later one."""
        self._over = True
        self.rest()
        for connection in list(self._open):
            with suppress(OSError):  # it was closed a moment ago
                connection.shutdown(socket.SHUT_RDWR)


# ruff: noqa: D102 - the methods below are torch.distributed.Store's, documented there


class UnixStore(dist.Store):  # type: ignore[name-defined,misc]  # torch has no types for it
    """A client of `StoreServer`, with torch's interface.

    Args:
        path: the server's socket; the server may still be starting.
        timeout: seconds to wait for the server, and that `get` and `wait` wait for a key.
    """

    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__()
        self._seconds = timeout
        self._connections = _Connections(path)

    def retarget(self, path: Path) -> None:
        """Use the server at another socket from now on: all holders of this store then meet there."""
        self.abort()
        self._connections = _Connections(path)

    def abort(self) -> None:
        """Fail every call in progress, from any thread, and every later one."""
        self._connections.end()

    def close(self) -> None:
        """Close the idle connections."""
        self._connections.rest()

    def _ask(self, *request: Any) -> Any:
        return self._connections.ask(request, self._seconds)

    def _wait(self, keys: list[str], seconds: float) -> list[bytes]:
        values: list[bytes] | None = self._ask("wait", keys, seconds)
        if values is None:
            raise dist.DistStoreError(f"The keys {keys} did not appear in the store within {seconds:g} s.")
        return values

    def set(self, key: str, value: bytes | str) -> None:
        self._ask("set", key, _bytes(value))

    def get(self, key: str) -> bytes:
        return self._wait([key], self._seconds)[0]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return self._wait(list(keys), self._seconds)

    def multi_set(self, keys: list[str], values: list[bytes | str]) -> None:
        self._ask("multi_set", list(keys), [_bytes(value) for value in values])

    def add(self, key: str, amount: int) -> int:
        value: int = self._ask("add", key, amount)
        return value

    def append(self, key: str, value: bytes | str) -> None:
        self._ask("append", key, _bytes(value))

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        value: bytes = self._ask("compare_set", key, _bytes(expected), _bytes(desired))
        return value

    def check(self, keys: list[str]) -> bool:
        there: bool = self._ask("check", list(keys))
        return there

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._wait(list(keys), self._seconds if timeout is None else timeout.total_seconds())

    def delete_key(self, key: str) -> bool:
        gone: bool = self._ask("delete", key)
        return gone

    def num_keys(self) -> int:
        count: int = self._ask("count")
        return count

    def has_extended_api(self) -> bool:
        return True

    @property
    def timeout(self) -> timedelta:
        return timedelta(seconds=self._seconds)

    def set_timeout(self, timeout: timedelta) -> None:
        self._seconds = timeout.total_seconds()


def _bytes(value: bytes | str | list[int]) -> bytes:
    # torch's C++ side passes bytes, Python code often text, and some calls a list of byte values.
    return value.encode() if isinstance(value, str) else bytes(value)
