"""A client of a node whose daemon is the test."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable
from typing import Any

from nbcomm.protocol import (
    Claim,
    Exited,
    NodeHello,
    Obeyed,
    Order,
    Processes,
    Ready,
    Report,
    Started,
)
from nbcomm.world_dir import WorldDir

from ..node.fake_daemon import FakeDaemon
from ..node.served import PATIENCE, Client, await_that

READY = Ready(forks=True, gpus=0, why="")


class Told(Client):
    """A client that also knows how many reports it has done with: ``heard`` has one before anything comes of it."""

    def __init__(self, home: WorldDir, *, running: bool) -> None:
        self.done = 0
        super().__init__(home, running=running)

    def hear(self, report: Report) -> None:
        try:
            super().hear(report)
        finally:
            self.done += 1


class Scripted:
    """A client that has taken a world, whose daemon is the test."""

    def __init__(self) -> None:
        self.home = WorldDir.create()
        self.home.daemon_log.write_text("what the daemon said\n")
        self.client = Told(self.home, running=True)
        self.daemons = [FakeDaemon(self.home)]
        self._threads: list[threading.Thread] = []
        self.version = 0
        self.given_up = threading.Event()

    @property
    def daemon(self) -> FakeDaemon:
        return self.daemons[-1]

    def take(self, kind: type[Order]) -> Order:
        """The next order, which is of this kind."""
        order = self.daemon.order()
        assert isinstance(order, kind), order
        return order

    def greet(self, number: int = 1, *known: Report, store: int = 0) -> Claim:
        """Say hello as a daemon, and let the client claim the world."""
        self.daemon.report(NodeHello(number, store))
        while not isinstance(claim := self.daemon.order(), Claim):
            assert number == 1, claim  # it may have been connected before it said hello
        self.tell(*(known or [Processes(self.version, [])]), Obeyed(claim.number))
        return claim

    def replace(self) -> None:
        """Let another daemon take the place of the present one."""
        self.daemons.append(FakeDaemon(self.home))

    def tell(self, *reports: Report) -> None:
        """Report, and wait until the client has done all that comes of it."""
        before, said = len(self.client.heard), list[Report]()
        for is_row, rows in itertools.groupby(reports, lambda report: isinstance(report, Started | Exited)):
            if is_row:  # of the table of processes, which has a version
                self.version += 1
                said.append(Processes(self.version, [*rows]))  # type: ignore[list-item]
            else:
                said += rows
        for report in said:
            self.daemon.report(report)
        await_that(lambda: self.client.done >= before + len(said), "it does not hear")

    def later(self, work: Callable[[], object]) -> queue.Queue[object]:
        """Do something on a thread; return where its result, or error, will be."""
        result: queue.Queue[object] = queue.Queue()

        def run() -> None:
            try:
                result.put(work())
            except BaseException as error:  # noqa: BLE001 - the test judges it
                result.put(error)

        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()
        return result

    def start(self, key: str = "rank 0") -> queue.Queue[object]:
        wishes: Any = {"environment": {"A": "b"}, "given_up": self.given_up.is_set}
        return self.later(lambda: self.client.start(key, "engine", ["--x"], **wishes))

    def close(self) -> None:
        for daemon in self.daemons:
            daemon.close()
        self.client.release()
        for thread in self._threads:
            thread.join(PATIENCE)
        self.home.remove()
