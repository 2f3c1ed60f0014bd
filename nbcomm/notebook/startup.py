"""Brings a world up: processes, links, places, process group. Fails with the log of whoever failed."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import ranks as rank_specs
from ..errors import StartError
from ..launch import layout
from ..launch.client import ForkServerClient
from ..messages import Form
from .link import Link
from .requests import Request
from .roster import Roster

if TYPE_CHECKING:
    from ..launch.local import LocalCluster

GROUP_TIMEOUT = 1800.0
"""Seconds that a collective waits for its ranks; torch's own default for gloo."""

_TICK = 0.1

Progress = Callable[[str, int, int], None]
"""Told what the start is doing, how many ranks are ready, and of how many."""


@dataclass(frozen=True)
class Wishes:
    """What the user asked for.

    Attributes:
        n: number of ranks; None for one per GPU, or 4 on the CPU.
        device: "auto", "cpu" or "cuda".
        backend: a `torch.distributed` backend in place of the one that suits the device.
        timeout: seconds that the start may take.
        grace: seconds that the world lives on when its notebook has died.
    """

    n: int | None = None
    device: str = "auto"
    backend: str | None = None
    timeout: float = 120.0
    grace: float = 60.0


class Startup:
    """One start, step by step; meanwhile the session's link delivers into the roster.

    Args:
        wishes: what is wanted.
        forkserver: starts the processes; it may still be importing torch.
        roster: is filled in by the link as the ranks report.
        progress: told how it comes along.
    """

    def __init__(self, wishes: Wishes, forkserver: ForkServerClient, roster: Roster, progress: Progress) -> None:
        self.notice = ""
        """What the user should know of the devices that were chosen, or of how the ranks were started."""
        self._wishes = wishes
        self._forkserver = forkserver
        self._roster = roster
        self._progress = progress
        self._deadline = time.monotonic() + wishes.timeout

    def launch(self) -> LocalCluster:
        """Start the processes; returns before they are up.

        Raises:
            StartError: the wish cannot be granted, or the fork server failed.
        """
        self._progress("importing torch", 0, self._wishes.n or 0)
        # Here, for ipyparallel takes as long to import as all else that a notebook needs: while the fork server
        # imports torch it costs nothing, and a notebook that starts no world never pays for it.
        from ..launch import local

        self._ready = self._forkserver.wait_ready(self._wishes.timeout)
        self._n = layout.choose_size(self._wishes.n, self._ready.gpus)
        self._device, backend, self.notice = layout.choose_device(self._wishes.device, self._n, self._ready.gpus)
        self._backend = self._wishes.backend or backend
        if not self._ready.forks:
            plainly = f"Each rank was started as a process of its own, which takes longer: {self._ready.why}."
            self.notice = f"{self.notice} {plainly}".strip()
        self._forkserver.set_lease(self._wishes.grace)
        self._progress("starting engines", 0, self._n)
        cluster = local.LocalCluster(self._forkserver)
        cluster.start(self._n)
        return cluster

    def await_ranks(self) -> None:
        """Wait until every engine can run cells, then give each its place.

        Raises:
            StartError: an engine died, or the time is over; the message ends with its log.
        """
        roster, shown = self._roster, -1
        while len(roster.attached) < self._n:
            for rank, cause in roster.dead.items():
                raise StartError(f"Rank {rank} {cause} while it started. Its log ends:\n{roster.log(rank)}")
            if time.monotonic() > self._deadline:
                late = sorted(set(range(self._n)) - roster.attached)
                raise StartError(
                    f"Rank {rank_specs.fold(late)} did not come up within {self._wishes.timeout:g} s "
                    f"(--timeout gives more). The log of rank {late[0]} ends:\n{roster.log(late[0])}"
                )
            if len(roster.attached) != shown:
                shown = len(roster.attached)
                self._progress("starting engines", shown, self._n)
            roster.wait(_TICK)
        self._roster.places = layout.assign_places(
            roster.hellos.values(), self._device, self._backend, self._ready.gpus
        )

    def form_group(self, link: Link, request: Request) -> None:
        """Have all ranks join the process group's first generation.

        Raises:
            StartError: a rank could not, or the time is over.
        """
        self._progress("forming the process group", self._n, self._n)
        port, store = _free_port(), str(self._forkserver.home.store_socket(1))
        for place in self._roster.places:
            link.send([place.rank], Form(request.id, place, store, 1, "127.0.0.1", port, GROUP_TIMEOUT))
        while not request.wait(_TICK) and not request.failures():
            if time.monotonic() > self._deadline:
                late = request.waiting_for()
                raise StartError(
                    f"The process group did not form within {self._wishes.timeout:g} s: rank {rank_specs.fold(late)} "
                    f"has not joined. The log of rank {late[0]} ends:\n{self._roster.log(late[0])}"
                )
        for rank, failure in request.failures().items():
            raise StartError(f"Rank {rank} could not join the process group:\n{failure.traceback}")


def _free_port() -> int:
    """A TCP port that was free a moment ago, for libraries that read MASTER_PORT; nbcomm itself uses none."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
