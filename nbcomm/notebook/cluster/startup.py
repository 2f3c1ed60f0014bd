"""The start of a world: processes, links, places, process group. A failure comes with the log of the failed rank."""

from __future__ import annotations

import os
import socket
import time
from functools import partial
from typing import TYPE_CHECKING

from ... import rank_spec as rank_specs
from ... import torch_build
from ...errors import StartError
from ...launch import backends, capacity, placement
from ...protocol import Failure
from ...torch_versions import limits, untested
from .generations import Generations
from .rank_table import RankTable
from .readiness import await_ranks, refuse_dead
from .start_options import SCHEDULERS, Progress, StartOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...launch.launchers.shared_launcher import SharedLauncher
    from ...launch.node_client import NodeClient
    from .pending import PendingRequest
    from .processes import Processes

PLAIN_GROUPS = "NBCOMM_PLAIN_GROUPS"
"""Environment variable that makes worlds use torch's own process groups."""

TORCHS_OWN_GROUPS = (
    "The process groups are torch's own: nbcomm does not detect deadlocks, does not compare mismatched calls, and "
    "after an interrupt in a collective or a heal, subgroups and modules that hold a group must be created again."
)
"""The notice of a world without nbcomm's process groups."""

_TICK = 0.1


class _CannotFormError(StartError):
    """Ranks could not join a generation.

    Args:
        failures: the first ones, by rank.
    """

    def __init__(self, failures: dict[int, Failure]) -> None:
        super().__init__(f"{rank_specs.capital(rank_specs.named(list(failures)))} could not join the process group.")
        self.failures = failures


class Startup:
    """One start, step by step; meanwhile the session's link fills in the rank table.

    Args:
        options: the user's request.
        processes: starts them; the daemon may still be importing torch.
        rank_table: the link fills it in as the ranks report.
        progress: called with each step.
    """

    def __init__(self, options: StartOptions, processes: Processes, rank_table: RankTable, progress: Progress) -> None:
        self._options = options
        self._processes = processes
        self._rank_table = rank_table
        self._progress = progress
        self._deadline = time.monotonic() + options.timeout
        self._doing = "starting engines"
        self._of_devices, self._notices = "", list[str]()

    @property
    def notice(self) -> str:
        """What the user should know of the chosen devices, and of how the ranks were started."""
        return " ".join(filter(None, [self._of_devices, *self._notices]))

    @property
    def printed(self) -> str:
        """What the user's startup files have printed on the ranks, once if they agree."""
        texts = {rank: hello.printed.strip() for rank, hello in sorted(self._rank_table.hellos.items())}
        alike = rank_specs.together(texts, texts.values())
        return "\n".join(f"[{rank_specs.fold(who)}] {row}" for text, who in alike.items() for row in text.splitlines())

    def launch(self) -> None:
        """Start the processes; return before they are up.

        Raises:
            StartError: the request cannot be met, or the daemon failed.
        """
        self._progress("importing torch", 0, self._options.n or 0)
        nodes, options = self._processes.nodes, self._options
        ready = nodes.head.wait_ready(options.timeout)
        facts = nodes.head.facts()
        nodes.compares = options.guard != "node"
        if options.engines != "local":
            self._launch_remote()
            return
        self._n = placement.choose_size(options.n, ready.gpus, cores=facts.cores)
        self._choose_device(ready.gpus, ready.nccl)
        if options.device == "auto" and ready.gpus == 0:
            self._notices.append(torch_build.why_unseen())
        if not ready.forks:
            plainly = f"Each rank was started as a separate process, which takes longer: {ready.why}."
            self._notices.append(plainly)
        crowd = capacity.crowd(self._n, facts.cores)
        self._notices += [ready.note, crowd]
        self._doing += crowd and f" on {facts.cores} core{'s' * (facts.cores > 1)}, which takes longer"
        counts = placement.share_out(self._n, 1 if options.nodes is None else options.nodes)
        if len(counts) > 1:
            self._progress("joining nodes", 0, self._n)
            nodes.add_here(counts, self._deadline)
        self._shares = [placement.NodeShare(count, max(1, facts.cores // len(counts)), ready.gpus) for count in counts]
        self._progress(self._doing, 0, self._n)
        self._processes.start(self._n, options.grace)

    def _launch_remote(self) -> None:
        # Imported here: most worlds are on one machine.
        from . import joining

        nodes, options = self._processes.nodes, self._options
        if options.engines == "ssh":
            there = joining.on_hosts(options)
        elif options.engines == "mpi":
            there = joining.by_mpi(options)
        elif options.engines in SCHEDULERS:
            there = joining.by_batch(options)
        else:
            nodes.job = joining.a_job(options, nodes.job)
            there = joining.in_job(options, nodes.job, lambda said: self._progress(said, 0, options.n or 0))
            self._deadline = time.monotonic() + options.timeout  # the time in the queue is not the start's
        self._n = sum(there.counts)
        self._progress("joining nodes", 0, self._n)
        nodes.add_all(there, partial(self._join_by, there.shared_launcher))
        self._shares = nodes.shares()
        gpus = min(share.gpus / share.ranks for share in self._shares if share.ranks)
        self._choose_device(int(gpus * self._n), placement.oldest_nccl(self._shares))
        self._progress(self._doing, 0, self._n)
        self._processes.start(self._n, options.grace)

    def _choose_device(self, gpus: int, nccl: str) -> None:
        options, device = self._options, self._options.wanted_device
        share = options.share and placement.can_share(nccl)
        backends.check(device, options.backend, None, gpus, self._n, share=share)
        self._device, backend, self._of_devices = placement.choose_device(device, self._n, gpus, nccl, share=share)
        self._backend = options.backend or backend
        self._tries_nccl = options.backend is None and "nccl" in backend and self._n > gpus

    def _join_by(self, shared_launcher: SharedLauncher | None, invited: Sequence[NodeClient]) -> float:
        """Wait until what starts the nodes does run; return until when they must have joined."""
        if shared_launcher is not None and shared_launcher.await_run(
            lambda said: self._progress(said, 0, self._n), lambda: any(node.daemons for node in invited)
        ):
            self._deadline = time.monotonic() + self._options.timeout  # the time in the queue is not the start's
            self._progress("joining nodes", 0, self._n)
        return self._deadline

    def await_ranks(self) -> None:
        """Wait until every engine can run cells, then give each its place.

        Raises:
            StartError: an engine died, or the time is over; the message ends with its log.
        """
        await_ranks(
            self._rank_table,
            range(self._n),
            self._deadline,
            f"{self._options.timeout:g} s (--timeout gives more)",
            progress=lambda ready: self._progress(self._doing, ready, self._n),
            look=self._processes.look,
        )
        self._rank_table.places = placement.assign_places(self._shares, self._device, self._backend)

    def form_group(self, generations: Generations) -> None:
        """Make all ranks join the process group's first generation: with nbcomm's groups, or else with torch's own.

        Raises:
            StartError: a rank could not, or the time is over.
        """
        self._progress("forming the process group", self._n, self._n)
        generations.port = _free_port()
        generations.plain = f"{PLAIN_GROUPS} is set" if os.environ.get(PLAIN_GROUPS) else ""
        failed = self._form(generations)
        if failed and self._tries_nccl:
            self._rank_table.places = placement.assign_places(self._shares, self._device, "gloo")
            said = next(iter(failed.values())).message.strip().splitlines()[-1].rstrip(".")
            self._of_devices = f"The ranks share their GPUs over gloo, because NCCL could not: {said}."
            failed = self._form(generations)
        if failed and not generations.plain:
            generations.plain = next(iter(failed.values())).message
            failed = self._form(generations)
        for rank, failure in failed.items():
            raise StartError(f"Rank {rank} could not join the process group: {failure.name}: {failure.message}")
        if generations.plain:
            self._notices.append(f"{TORCHS_OWN_GROUPS} The reason: {generations.plain.rstrip('.')}.")
        torch = self._rank_table.hellos[0].torch
        self._notices += [untested(torch), limits(torch)]

    def _form(self, generations: Generations) -> dict[int, Failure]:
        """Make all ranks join a generation; return the first failures, once no request is under way."""
        try:
            generations.form(partial(self._await_forming, generations))
        except _CannotFormError as error:
            return error.failures
        return {}

    def _await_forming(self, generations: Generations, request: PendingRequest) -> None:
        failed: dict[int, Failure] = {}
        while not request.wait(_TICK):
            self._processes.look()
            refuse_dead(self._rank_table, range(self._n))
            failed = failed or request.failures()
            if failed and not request.aborted:  # the others wait for those
                generations.end(request, "Another rank could not form its process groups.", "CollectiveError")
            elif generations.lost and not request.aborted:  # some may have met there, and others may not
                generations.end(request, "The store in which the ranks meet is lost.", "CollectiveError")
            if time.monotonic() > self._deadline:
                late = request.waiting_for()
                raise StartError(
                    f"The process group did not form within {self._options.timeout:g} s: "
                    f"{rank_specs.named(late)} did not join. The log of rank {late[0]} "
                    f"ends:\n{self._rank_table.log(late[0])}"
                )
        refuse_dead(self._rank_table, range(self._n))
        failures = request.failures()
        generations.newcomers = set(failures)  # the others have joined
        if failures:
            raise _CannotFormError(failed or failures)
        if request.aborted:  # the word of its end may have come to a rank behind its answer
            raise StartError("The process group did not form: the daemon that serves the ranks' store has ended.")


def _free_port() -> int:
    """Return a TCP port that was free a moment ago, for libraries that read MASTER_PORT; nbcomm itself uses none."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
