"""A world on this machine: ipyparallel's `Cluster` on our launchers, on a thread of its own.

ipyparallel is asynchronous and a notebook's main thread is not ours to await on, so one daemon thread runs
its loop for as long as the world lives.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine
from typing import Any

import ipyparallel

from ..home import Home
from .client import ForkServerClient
from .launchers import launchers_for

_HEARTBEAT = 100
"""Milliseconds between the controller's heartbeats: how soon ipyparallel's clients hear of a new engine."""

_CONTROLLER = [
    f"--HeartMonitor.period={_HEARTBEAT}",
    "--HeartMonitor.max_heartmonitor_misses=100",
    "--usethreads",
    "--scheme=none",  # the balanced scheduler is a process that nobody here asks
    "--IPController.broadcast_scheduler_depth=0",
    "--nodb",
    "--ip=127.0.0.1",
]


class LocalCluster:
    """The processes of a world on this machine.

    Args:
        forkserver: the fork server that starts them.
    """

    def __init__(self, forkserver: ForkServerClient) -> None:
        controller, engines = launchers_for(forkserver)
        log = logging.getLogger("nbcomm.ipyparallel")
        log.setLevel(logging.ERROR)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="nbcomm-cluster", daemon=True).start()
        self._cluster = self._do(self._make(ipyparallel.Cluster, controller, engines, forkserver.home, log))
        self._client: Any = None

    async def _make(self, cluster: Any, controller: Any, engines: Any, home: Home, log: logging.Logger) -> Any:
        return cluster(
            controller=controller,
            engines=engines,
            profile_dir=str(home.profile),
            cluster_id="",
            controller_args=_CONTROLLER,
            delay=0,
            shutdown_atexit=False,  # the session sees to that
            log=log,
        )

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def start(self, n: int) -> None:
        """Start the controller and n engines; returns when their processes are started, not yet ready."""
        self._do(self._cluster.start_cluster(n))
        self._engines = self._cluster.engine_set

    def start_engine(self, rank: int) -> None:
        """Start an engine in the place of one that has ended; returns when its process is started."""
        self._do(self._start_engine(rank))

    async def _start_engine(self, rank: int) -> None:
        engines, identifier = self._engines, str(rank)
        launcher = engines.launcher_class(
            work_dir=engines.work_dir,
            parent=engines,
            log=engines.log,
            profile_dir=engines.profile_dir,
            cluster_id=engines.cluster_id,
            environment=engines.environment,
            identifier=identifier,
        )
        launcher.engine_args = list(engines.engine_args)
        engines.launchers[identifier] = launcher
        launcher.on_stop(engines._notice_engine_stopped)  # noqa: SLF001 - what the set does for its first engines
        launcher.start()

    @property
    def client(self) -> Any:
        """The `Client` of ipyparallel for these engines, connected at its first use."""
        if self._client is None:
            self._client = self._cluster.connect_client_sync()
        return self._client

    def close(self) -> None:
        """Let go of the processes, which the fork server ends."""
        if self._client is not None:
            self._client.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
