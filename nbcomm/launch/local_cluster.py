"""A world on this machine: ipyparallel's `Cluster` on our launchers, on a thread of its own.

ipyparallel is asynchronous and nbcomm must not await on a notebook's main thread, so a daemon thread runs
ipyparallel's loop while the world lives.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import wait
from contextlib import suppress
from typing import Any, NoReturn

import ipyparallel
import zmq

from .. import rank_spec as rank_specs
from ..errors import Interrupted, StateError
from ..protocol.nodes import key_of
from ..threads import keep
from ..world_dir import private_file
from .ipyparallel_launchers import launchers_for
from .nodes import Nodes
from .working_folder import to_start_in

_HEARTBEAT = 100
"""Milliseconds between the controller's heartbeats, which limit how soon ipyparallel's clients see a new engine."""

_CONTROLLER = [
    f"--HeartMonitor.period={_HEARTBEAT}",
    "--HeartMonitor.max_heartmonitor_misses=100",
    "--usethreads",
    "--scheme=none",  # the balanced scheduler would be a process that nbcomm does not use
    "--IPController.broadcast_scheduler_depth=0",
    "--nodb",
]

_PATIENCE, _LOOK, _TICK = 10.0, 0.5, 0.01
"""Seconds until a client is accepted as it is; seconds for messages on their way to arrive; seconds between checks."""

_GRACE = 2.0
"""Seconds in which abandoned work must end."""


class _Client(ipyparallel.Client):  # type: ignore[misc]  # ipyparallel has no types
    """A client that cleans up if its creation fails or is interrupted."""

    def __init__(self, connection_info: str) -> None:
        try:
            super().__init__(connection_info=connection_info)
        except BaseException:
            while self._io_thread is not None and self._io_thread.is_alive() and self._io_loop is None:
                time.sleep(_TICK)  # its thread cannot be stopped yet
            self.close(linger=0)
            raise


class LocalCluster:
    """The processes of a world on this machine.

    Args:
        nodes: start them.
        running: whether they run already, started by another notebook.
    """

    def __init__(self, nodes: Nodes, *, running: bool = False) -> None:
        self._home = nodes.home
        self._log = logging.getLogger("nbcomm.ipyparallel")
        self._log.setLevel(logging.ERROR)
        self._loop = asyncio.new_event_loop()
        keep("nbcomm-cluster", self._run)
        self._clients: list[Any] = []  # that were handed out
        self._cluster: Any = None
        self._environment: dict[str, str] = {}
        self._nodes = nodes
        self._controller, self._engines, self._engine = launchers_for(nodes)
        if running:
            with suppress(OSError):  # the controller has ended before it could write that
                info = (self._home.profile / "security" / "ipcontroller-engine.json").read_text()
                self._environment["IPP_CONNECTION_INFO"] = info  # another node has no such file
        else:
            self._cluster = self._do(self._make(ipyparallel.Cluster))

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()  # it holds three descriptors

    async def _make(self, cluster: Any) -> Any:
        return cluster(
            controller=self._controller,
            engines=self._engines,
            profile_dir=str(self._home.profile),
            cluster_id="",
            cluster_file="",  # nothing would read it, and every user could
            controller_args=self._controller_args(),
            delay=0,
            shutdown_atexit=False,  # the session does that
            log=self._log,
        )

    def _controller_args(self) -> list[str]:
        return [*_CONTROLLER, f"--ip={self._nodes.host}"]

    def _do(self, work: Coroutine[Any, Any, Any], given_up: Callable[[], bool] = lambda: False) -> Any:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            while not wait([future], _TICK).done:
                if given_up():
                    raise Interrupted
        except KeyboardInterrupt:
            deadline = time.monotonic() + _GRACE
            while not wait([future], _TICK).done and time.monotonic() < deadline:
                self._nodes.give_up()  # repeatedly, because it may begin to wait only now
            raise
        return future.result()

    def start(self, n: int) -> None:
        """Start the controller and n engines; return when their processes are started, but not yet ready."""
        self._write_keys()
        self._do(self._cluster.start_cluster(n))
        self._environment = dict(self._cluster.engine_set.environment)

    def _write_keys(self) -> None:
        """Write the controller's keys: CURVE keys, which it requires of all who connect, and its signing key.

        Without CURVE any user of the machine could connect, and one short message would stop ipyparallel's queues: they
        read a message's parts without counting them. The keys are in a file, so that a replacement of the controller
        has the same keys, and engines find it again. Messages are signed too, because clients warn of unsigned ones.
        """
        public, secret = zmq.curve_keypair()
        with private_file(self._home.profile / "ipcontroller_config.py") as file:
            settings = {
                "IPController.curve_publickey": public,
                "IPController.curve_secretkey": secret,
                "IPController.enable_curve": True,
                "Session.key": secrets.token_hex(32).encode(),
            }
            file.write("".join(f"c.{name} = {value!r}\n" for name, value in settings.items()).encode())

    def start_engine(self, rank: int, given_up: Callable[[], bool] = lambda: False) -> None:
        """Start an engine in the place of one that has ended; return when its process is started.

        Raises:
            Interrupted: it was given up, and no process of it is left.
        """
        work = self._start(self._engine, identifier=str(rank), environment=self._environment)
        self._start_one(key_of(rank), work, given_up)

    def start_controller(self, given_up: Callable[[], bool] = lambda: False) -> None:
        """Start a controller in the place of one that has ended, on the same ports; see `start_engine`."""
        work = self._start(self._controller, controller_args=[*self._controller_args(), "--reuse"])
        self._start_one("controller", work, given_up)

    def _start_one(self, key: str, work: Coroutine[Any, Any, Any], given_up: Callable[[], bool]) -> None:
        try:
            self._do(work, given_up)
        except KeyboardInterrupt:
            self._nodes.of(key).abandon(key)  # it may have been started in the moment in which it was given up
            raise

    async def _start(self, launcher: Any, **options: Any) -> None:
        folder, profile = to_start_in(self._home), str(self._home.profile)
        launcher(work_dir=folder, profile_dir=profile, cluster_id="", log=self._log, **options).start()

    def client(self, ranks: Sequence[int]) -> Any:
        """Return the `Client` of ipyparallel, which knows these ranks.

        A client that connects while an engine registers may never learn of that engine, and output that an engine
        sends before the client's subscription reaches it is lost. So the first is checked at each call, for an engine
        may have been replaced, and the second for a while after each connection: an engine may run a cell meanwhile.
        A client that was handed out before stays open, for somebody may use it.

        Raises:
            StateError: ranks have not registered in time.
        """
        if not self._clients or not _knows(self._clients[-1], ranks, _PATIENCE):
            self._clients.append(self._connect(ranks))
        return self._clients[-1]

    def _connect(self, ranks: Sequence[int]) -> Any:
        """Make clients until one knows these ranks."""
        deadline = time.monotonic() + _PATIENCE
        client: Any = None
        try:
            while client is None or not _knows(client, ranks, _LOOK):
                if client is not None:
                    missing = sorted(set(ranks) - set(client.ids))
                    client.close()
                    if missing and time.monotonic() > deadline:
                        _refuse(missing)
                client = _Client(str(self._home.profile / "security" / "ipcontroller-client.json"))
            while not _hears(client, ranks) and time.monotonic() < deadline:
                pass
        except BaseException:  # mostly ■
            if client is not None:
                client.close(linger=0)
            raise
        return client

    def close(self) -> None:
        """Close the clients and the loop; the fork server ends the processes."""
        for client in self._clients:
            client.close()
        self._loop.call_soon_threadsafe(self._loop.stop)


def _refuse(missing: Sequence[int]) -> NoReturn:
    """Raise an error that names the ranks that a client does not know."""
    raise StateError(
        f"{rank_specs.capital(rank_specs.named(missing))} {'have' if len(missing) > 1 else 'has'} not registered with "
        f"ipyparallel's controller within {_PATIENCE:g} s, so session.client would not know all ranks. Cells run "
        "without it. Try again, or type %distributed heal."
    )


def _knows(client: Any, ranks: Sequence[int], patience: float) -> bool:
    return _within(patience, lambda: set(ranks) <= set(client.ids))


def _hears(client: Any, ranks: Sequence[int]) -> bool:
    """Let engines run an empty cell, and tell whether their messages about it arrive."""
    known = [rank for rank in ranks if rank in client.ids]
    if not known:
        return True
    asked = client[known].execute("", silent=False, block=False)
    if not _within(_PATIENCE, asked.ready):
        return False
    return _within(_LOOK, lambda: all(word["execute_input"] is not None for word in asked.metadata))


def _within(seconds: float, condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_TICK)
    return True
