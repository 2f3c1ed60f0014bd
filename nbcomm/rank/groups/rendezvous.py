"""A rank's client of the store in which the ranks of a process group meet; see `nbcomm.node.store`.

Each rank is a client. It opens a connection per simultaneous call, because torch calls a store from several threads at
once and a ``wait`` may last long.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ...node.store import receive, send

_RETRY = 0.002
"""Seconds between two tries to reach a server that is not up yet."""


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
            send(connection, request)
            reply = receive(connection)
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
