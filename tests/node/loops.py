"""The part of a daemon's loop that serves the ranks' groups, on a thread of the test."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import zmq

from nbcomm.faults import Faults
from nbcomm.node.rendezvous import Rendezvous
from nbcomm.node.store import Store, StoreServer
from nbcomm.protocol import ServeGroups, Serving
from nbcomm.world_dir import WorldDir
from nbcomm.world_info import LinkInfo

_PATIENCE = 30.0
_LONGEST = 600.0


class Loop:
    """A thread that waits for sockets and does what it is told, one thing after the other."""

    def __init__(self) -> None:
        self.poller = zmq.Poller()
        self._wake, self._woken = socket.socketpair()
        self.poller.register(self._woken, zmq.POLLIN)
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._run, name="loop", daemon=True)

    due: Callable[[], float]
    serve: Callable[[Mapping[Any, int]], None]

    def call(self, work: Callable[[], Any]) -> Any:
        """Do something on the thread; return its result, or raise its error."""
        done: Future[Any] = Future()
        self._work.put((work, done))
        self._wake.send(b"\0")
        return done.result(_PATIENCE)

    def end(self) -> None:
        """End the thread."""
        if self.thread.is_alive():
            self._work.put(None)
            self._wake.send(b"\0")
            self.thread.join(_PATIENCE)
            self._wake.close()
            self._woken.close()

    def _run(self) -> None:
        while True:
            ready = dict(self.poller.poll(1000 * max(0.0, min(_LONGEST, self.due() - time.monotonic()))))
            if self._woken.fileno() in ready:
                self._woken.recv(1)
                task = self._work.get()
                if task is None:
                    return
                work, done = task
                try:
                    done.set_result(work())
                except Exception as error:  # noqa: BLE001 - who waits raises it
                    done.set_exception(error)
            try:
                self.serve(ready)
            except OSError:
                time.sleep(0.01)


class ServedStore:
    """A store that is served at a path, until it is closed."""

    def __init__(self, path: Path, store: Store | None = None) -> None:
        self.store = store or Store()
        self._loop = Loop()
        self._server = StoreServer(path, self.store)
        self._loop.poller.register(self._server.fileno(), zmq.POLLIN)
        self._loop.due = lambda: self.store.due
        self._loop.serve = self._serve
        self._loop.thread.start()

    def _serve(self, _: Mapping[Any, int]) -> None:
        self._server.serve()
        self.store.give_up()

    def clients(self) -> int:
        """How many are connected."""
        return int(self.call(lambda: len(self._server._selector.get_map()) - 1))

    def call(self, work: Callable[[], Any]) -> Any:
        """Do something between two steps of the loop."""
        return self._loop.call(work)

    def close(self) -> None:
        """Serve nobody any more."""
        if self._loop.thread.is_alive():
            self._loop.call(lambda: self._loop.poller.unregister(self._server.fileno()))
            self._loop.call(lambda: setattr(self._loop, "serve", lambda _: None))
            self._loop.call(self._server.close)
        self._loop.end()


class ServedGroups:
    """What a daemon serves of the groups, without all the rest of it."""

    def __init__(self, home: WorldDir, info: LinkInfo) -> None:
        self._loop = Loop()
        self.faults = Faults()
        self.rendezvous = Rendezvous(home, info, self._loop.poller, self.faults)
        self._loop.due = lambda: self.rendezvous.due
        self._loop.serve = self.rendezvous.serve
        self._loop.thread.start()

    def obey(self, order: ServeGroups) -> Serving:
        """Give it an order."""
        answer = self.call(lambda: self.rendezvous.obey(order))
        assert isinstance(answer, Serving)
        return answer

    def call(self, work: Callable[[], Any]) -> Any:
        """Do something between two steps of the loop."""
        return self._loop.call(work)

    def close(self) -> None:
        """Serve nobody any more."""
        if self._loop.thread.is_alive():
            self._loop.call(self.rendezvous.close)
        self._loop.end()
