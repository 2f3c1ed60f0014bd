"""A rank's client of the store in which the ranks of a process group meet; see `nbcomm.node.store`.

Each rank is a client: at a Unix socket of its node's daemon, or, if another node has the store, at that one's listener,
by its own key. It opens a connection per simultaneous call, because torch calls a store from several threads at once
and a ``wait`` may last long.

If the daemon ends, the next one serves an empty store in the same place. Groups that are formed miss nothing there. But
ranks that meet must all meet in one store: one that wrote to the last store and reads from the next one would wait for
ever. So a client keeps to the store that it has found, and fails if another one is there, until it is told that
something new begins (`StoreClient.settle`). What began before fails, which ends the wait of what began later.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ...protocol.common import LOOPBACK
from ...torch_internals import c10d
from .store_ways import StoreWay, WayToStore

_REPLACED = 30.0
"""Seconds in which a server that has ended is replaced: the notebook starts another daemon."""


class _Connections:
    """A client's connections to one server, until it is released. No lock: it might be held where a cell forks."""

    def __init__(self, way: WayToStore) -> None:
        self._way = way
        self._idle: deque[StoreWay] = deque()
        self._open: set[StoreWay] = set()
        self._server = b""
        self._has_formed = False
        self._begun = False
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
        began = time.monotonic()
        while True:
            try:
                reply = self._ask(request, patience)
                break
            except OSError as error:
                late = time.monotonic() - began > min(patience, _REPLACED)
                if self._begun or not self._has_formed or self._over or late:
                    message = f"The store at {self._way.where} is gone: {error}"
                    raise dist.DistNetworkError(message) from None
            # The server was about to end when `settle` looked; nothing that was said since then is lost.
            time.sleep(self._way.pause)
            self.settle(meets=True)
        self._begun = True
        if self._over:  # `end` may have looked already
            self.rest()
        return reply

    def _ask(self, request: tuple[Any, ...], patience: float) -> Any:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect(patience)
        try:
            reply = connection.ask(request)
        except BaseException:
            self._drop(connection)
            raise
        self._idle.append(connection)
        return reply

    def _connect(self, patience: float) -> StoreWay:
        began = time.monotonic()
        while not self._over:
            connection = self._way.make()
            self._open.add(connection)
            try:
                self._keep_to(connection.meet())
                if self._over:  # also if `end` found it before it was connected, and so could not end it
                    break
            except BaseException as error:  # noqa: BLE001 - raised again, unless a server may still come
                self._drop(connection)
                self._may_come(error, time.monotonic() - began, patience)
                time.sleep(self._way.pause)
            else:
                return connection
        raise dist.DistNetworkError(f"The store at {self._way.where} is closed.")

    def _may_come(self, error: BaseException, waited: float, patience: float) -> None:
        """Raise unless a server may still come."""
        if isinstance(error, FileNotFoundError) and not self._server:
            if waited > patience:  # the node is told to serve before the ranks are told to meet, but may be late
                raise dist.DistStoreError(f"No store started at {self._way.where} within {patience:g} s.") from None
        elif (
            not isinstance(error, ConnectionRefusedError)  # the daemon that served has ended, and its file is left
            or self._server
            or not self._has_formed
            or waited > min(patience, _REPLACED)
        ):
            raise error

    def _keep_to(self, server: bytes) -> None:
        if self._server not in {b"", server}:
            raise ConnectionError("another store is there now, which does not know what was said before")
        self._server = server

    def settle(self, *, meets: bool) -> None:
        """Accept another process that serves there now; where none does, wait for it; see `StoreClient.settle`."""
        self._begun = not meets
        self._has_formed = True  # before, the groups are formed elsewhere if the server ends
        alive = []
        with suppress(IndexError):
            while True:
                connection = self._idle.pop()
                if connection.lives():
                    alive.append(connection)
                else:
                    self._drop(connection)
        self._idle.extend(alive)
        if not alive:
            self._server = b""
        if self._over:  # `end` may have looked already
            self.rest()

    def _drop(self, connection: StoreWay) -> None:
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
            connection.free()


# ruff: noqa: D102 - the methods below are torch.distributed.Store's, documented there


class StoreClient(dist.Store):  # type: ignore[name-defined,misc]  # torch has no types for it
    """A client of `StoreServer`, with torch's interface.

    Args:
        way: leads to the server, which may still be starting.
        timeout: seconds to wait for the server, and that `get` and `wait` wait for a key.
    """

    def __init__(self, way: WayToStore, timeout: float) -> None:
        super().__init__()
        self._seconds = timeout
        self._connections = _Connections(way)

    def retarget(self, way: WayToStore) -> None:
        """Use another server from now on: all holders of this store then meet there."""
        self.abort()
        self._connections = _Connections(way)

    def settle(self, *, meets: bool) -> None:
        """Begin something new: if another daemon serves the store now, go on there.

        Args:
            meets: a group's members meet now, each of which says that it is there, and waits for all others. If the
                daemon ends before the first word, that is said again to the next one. Anything else fails then: what
                only one rank says, and others wait for, may have been said to the last one.
        """
        self._connections.settle(meets=meets)

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


def stand_in(store: Callable[[], Any]) -> c10d.Undo:
    """Let ``dist.TCPStore`` at MASTER_ADDR and MASTER_PORT return another store from now on.

    torchrun's agent serves one there. Here no port is open, for a TCPStore admits everybody who can reach it.

    Args:
        store: returns the other one; None for torch's own.
    """

    def make(plain: Any, host_name: str, port: int, *args: Any, **kwargs: Any) -> Any:
        host = os.environ.get("MASTER_ADDR")
        alike = host_name == host or {host_name, host} <= {"localhost", LOOPBACK}
        found = store() if alike and str(port) == os.environ.get("MASTER_PORT") else None
        return plain(host_name, port, *args, **kwargs) if found is None else found

    return c10d.put(c10d.dist, "TCPStore", c10d.StandIn(c10d.dist.TCPStore, make))


def _bytes(value: bytes | str | list[int]) -> bytes:
    # torch's C++ side passes bytes, Python code often text, and some calls a list of byte values.
    return value.encode() if isinstance(value, str) else bytes(value)
