"""ipyparallel launchers that let the fork server start their processes.

ipyparallel's `Cluster` uses them as it uses any launcher: it starts the controller, then a set of
engines, signals them, and is notified when they end.
"""

from __future__ import annotations

import asyncio
import signal
from typing import Any

from ipyparallel.cluster import launcher as ipp

from ..errors import StartError
from ..node.processes.exit_status import how_it_ended
from .node_client import NodeClient
from .nodes import Nodes

_ENGINE = [
    "--IPEngine.enable_nanny=False",  # the fork server reaps, and signals go to the process itself
    "--IPEngine.max_heartbeat_misses=0",  # the lease decides how long an engine lives without a notebook
    "--log-level=WARN",
]


class _ForkedProcess(ipp.LocalProcessLauncher):  # type: ignore[misc]  # ipyparallel has no types
    """The base of the two launchers: the process is the fork server's child, not ours."""

    nodes: Nodes
    what: str

    def start(self) -> None:
        """Let the fork server start the process."""
        loop, node = self.loop, self._node
        self._ended = asyncio.Event()
        environment = self.get_env()
        if node.profile:
            environment["IPP_PROFILE_DIR"] = node.profile
        process = node.start(self._key, self.what, self._argv(), environment=environment)
        self.pid = process.pid
        node.watch(process, lambda status: loop.add_callback(self._has_ended, status))
        self.notify_start(self.pid)

    @property
    def _node(self) -> NodeClient:
        return self.nodes.of(self._key)

    @property
    def _key(self) -> str:
        raise NotImplementedError

    def _argv(self) -> list[str]:
        raise NotImplementedError

    def _has_ended(self, status: int | None) -> None:
        self._ended.set()
        self.notify_stop({"exit_code": status, "pid": self.pid, "identifier": self.identifier})

    async def join(self, timeout: float | None = None) -> None:
        """Wait for the process to end."""
        await asyncio.wait_for(self._ended.wait(), timeout)

    def signal(self, sig: int) -> None:
        """Signal the process, if it still exists."""
        self._node.signal(self._key, sig)

    async def stop(self) -> None:
        """Kill the process; all that it leaves is in the world's directory."""
        self.signal(signal.SIGKILL)
        await self.join(self.stop_timeout)

    def poll(self) -> int | None:
        """Return the exit status, or None while the process runs."""
        return self.stop_data["exit_code"] if self.state == "after" else None

    def _log_output(self, stop_data: Any = None) -> None:
        """Log nothing when the process ends: nbcomm tells its end, and the node would have to be asked for the log."""

    def get_output(self, remove: bool = False) -> str:  # noqa: ARG002, FBT001, FBT002 - ipyparallel's signature
        """Return nothing: who needs a log asks the node for it."""
        return ""


class ForkedController(_ForkedProcess, ipp.ControllerLauncher):  # type: ignore[misc]
    """ipyparallel's controller, started by the fork server."""

    what = "controller"

    @property
    def _key(self) -> str:
        return "controller"

    def _argv(self) -> list[str]:
        return [*self.cluster_args, *self.controller_args]

    def find_args(self) -> list[str]:
        """Return the command that ipyparallel logs."""
        return ["nbcomm-controller", *self._argv()]

    async def get_connection_info(self, timeout: float | None = None) -> dict[str, Any]:
        """Wait for the controller, and return the information with which engines and clients connect to it.

        Raises:
            StartError: it has ended, or did not start in time.
        """
        try:
            info: dict[str, Any] = await super().get_connection_info(timeout)
        except (RuntimeError, TimeoutError) as error:  # ipyparallel's message, which does not give the cause
            status = self.poll()
            how = "did not start" if status is None else how_it_ended(status)
            raise StartError(
                f"ipyparallel's controller {how}. Its log ends:\n{self._node.log_tail(self._key)}"
            ) from error
        return info


class ForkedEngine(_ForkedProcess, ipp.EngineLauncher):  # type: ignore[misc]
    """The engine of one rank, started by the fork server with its rank as its id."""

    what = "engine"

    @property
    def _key(self) -> str:
        return f"rank {self.identifier}"

    def _argv(self) -> list[str]:
        return [*self.cluster_args, *self.engine_args, f"--IPEngine.id={self.identifier}", *_ENGINE]

    def find_args(self) -> list[str]:
        """Return the command that ipyparallel logs."""
        return ["nbcomm-engine", *self._argv()]


class ForkedEngineSet(ipp.LocalEngineSetLauncher):  # type: ignore[misc]
    """All ranks of a world."""

    launcher_class = ForkedEngine
    delay = 0.0


def launchers_for(
    nodes: Nodes,
) -> tuple[type[ForkedController], type[ForkedEngineSet], type[ForkedEngine]]:
    """Make launcher classes that use one fork server; ipyparallel creates launchers from classes only."""
    controller = type("ForkedController", (ForkedController,), {"nodes": nodes})
    engine = type("ForkedEngine", (ForkedEngine,), {"nodes": nodes})
    engines = type("ForkedEngineSet", (ForkedEngineSet,), {"launcher_class": engine})
    return controller, engines, engine
