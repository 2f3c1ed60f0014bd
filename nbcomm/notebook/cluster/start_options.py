"""The properties of a world that its user asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from ...errors import StartError
from ...launch import backends, placement

Progress = Callable[[str, int, int], None]
"""Called with the start's current step, the number of ready ranks, and the number of all."""

SCHEDULERS = ("pbs", "sge", "lsf", "htcondor")
"""The engines that are schedulers beside Slurm. What is known of each is imported only where one is used."""

_ENGINES = ("local", "ssh", "mpi", "slurm", *SCHEDULERS)

FOR_THE_QUEUE = ("partition", "gpus_per_node", "time", "account", "lines")
"""The options that only a scheduler knows."""

_FOR_ANY_JOB = ("before_end", "idle")
_FOR_JOBS = (*FOR_THE_QUEUE, *_FOR_ANY_JOB)


@dataclass(frozen=True)
class StartOptions:
    """The user's request.

    Attributes:
        n: number of ranks; None for one per GPU; without a GPU 4, or 2 on a machine with one core.
        device: "auto", "cpu" or "cuda".
        backend: a `torch.distributed` backend in place of the one that suits the device.
        timeout: time limit of the start, in seconds.
        grace: seconds that the world lives on when its notebook has died.
        share: more ranks than GPUs use NCCL, where it can serve several ranks on one GPU; the device is "cuda" then.
        name: the notebook's name for the world; empty for the default one.
        nodes: on how many nodes the ranks are; where nothing else is said, all of them are on this machine.
        oversubscribe: start as many ranks as asked for, also if this machine does not hold them.
        guard: which calls are compared before data moves: those of the whole "world", or only of each "node".
        engines: what starts the processes: "local", "ssh", "mpi", or a scheduler: "slurm", "pbs", "sge", "lsf" or
            "htcondor".
        hosts: for ssh or MPI, the machines, each with its number of ranks: "a:4,b:4".
        via: the command in place of ssh, with the host's name as {host}: "kubectl exec -i {host} --".
        python: the interpreter on other machines; by default this one's path.
        prologue: lines for a shell there, before each program: "module load python".
        wrapper: the command before the interpreter there: "apptainer exec --nv image.sif".
        tunnel: the machines cannot reach this one, so all goes through ssh.
        address: at which those machines reach this one; by default that of the route to the first.
        partition: for a scheduler, where it may be called a queue; so are the next ones.
        gpus_per_node: for each node.
        time: the time limit, as the scheduler takes it.
        account: who pays.
        lines: options for the scheduler, or for mpiexec, as they stand.
        before_end: a cell that the ranks run two minutes before the time limit; it interrupts the one that runs.
        idle: seconds without a request after which the scheduler gets its nodes back; 0 for never.
    """

    n: int | None = None
    device: str = "auto"
    backend: str | None = None
    timeout: float = 120.0
    grace: float = 60.0
    share: bool = False
    name: str = ""
    nodes: int | None = None
    oversubscribe: bool = False
    guard: str = "world"
    engines: str = "local"
    hosts: str = ""
    via: str = ""
    python: str = ""
    prologue: str = ""
    wrapper: str = ""
    tunnel: bool = False
    address: str = ""
    partition: str = ""
    gpus_per_node: int = 0
    time: str = ""
    account: str = ""
    lines: tuple[str, ...] = ()
    before_end: str = ""
    idle: float = 0.0

    @property
    def wanted_device(self) -> str:
        """The device that was asked for, in whatever way."""
        return "cuda" if self.share else self.device

    @classmethod
    def remembered(cls, written: dict[str, Any], **known: Any) -> StartOptions:
        """Return the options that another notebook has written down, with what is known better."""
        names = {field.name for field in fields(cls)}
        said = {name: value for name, value in written.items() if name in names}
        return cls(**{**said, "lines": tuple(said.get("lines", ())), **known})


def check(options: StartOptions) -> None:
    """Refuse what no machine can do, and options that another engine has.

    Raises:
        StartError: there is such.
    """
    placement.check(options.n, options.nodes, options.device)
    if options.engines not in _ENGINES:
        known = f"{', '.join(_ENGINES[:-1])} or {_ENGINES[-1]}"
        raise StartError(f"The engines {options.engines!r} are unknown; write --engines {known}.")
    if options.share and options.device == "cpu":
        raise StartError("--share lets ranks share a GPU, and --device cpu uses none; leave one of the two out.")
    _check_hosts(options)
    _check_queue(options)
    if options.backend is not None:
        backends.named_in(options.backend)
    if options.oversubscribe and options.engines != "local":
        raise StartError("--oversubscribe is about this machine; leave it out where --engines starts the ranks.")


def check_here(options: StartOptions) -> None:
    """Refuse what this machine, and the torch that is installed, certainly cannot do; torch is not imported for that.

    Raises:
        StartError: there is such.
    """
    # Imported here: a start needs them, and not `%load_ext`.
    from ... import torch_build
    from ...launch import capacity

    gpus = 0 if torch_build.shows_no_gpu() else None
    build = torch_build.installed()
    backends.check(options.wanted_device, options.backend, build, gpus, options.n, share=options.share)
    if options.n is not None and not options.oversubscribe:
        capacity.check(options.n, capacity.Machine.here(options.n))


def _check_hosts(options: StartOptions) -> None:
    if options.guard not in ("world", "node"):
        raise StartError(f"The guard {options.guard!r} is unknown; write --guard world or node.")
    if options.hosts and options.engines not in ("ssh", "mpi"):
        raise StartError(f"--hosts {options.hosts} needs --engines ssh or mpi.")
    if (options.hosts or options.engines == "ssh") and options.nodes is not None:
        raise StartError("--hosts says how many nodes there are; leave --nodes out.")
    if options.via and options.engines != "ssh":
        raise StartError("--via replaces ssh, so it needs --engines ssh.")
    if options.tunnel and (options.engines != "ssh" or options.via or options.address):
        raise StartError("--tunnel needs --engines ssh, without --via and --address.")
    if options.engines == "htcondor" and options.partition:
        raise StartError("HTCondor has no queues; leave --partition out, or name machines: --line 'requirements = …'.")


def _check_queue(options: StartOptions) -> None:
    meant = [name for name in _FOR_JOBS if getattr(options, name) != getattr(StartOptions, name)]
    if meant == ["lines"] and options.engines == "mpi":
        return
    if options.engines in SCHEDULERS:
        meant = [name for name in meant if name not in FOR_THE_QUEUE]
    if meant and options.engines != "slurm":
        option = "line" if meant[0] == "lines" else meant[0].replace("_", "-")
        others = "" if meant[0] in _FOR_ANY_JOB else f", or {', '.join(SCHEDULERS[:-1])} or {SCHEDULERS[-1]}"
        raise StartError(f"--{option} needs --engines slurm{others}.")
