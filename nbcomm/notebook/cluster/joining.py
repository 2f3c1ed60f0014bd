"""Which nodes a world has beside the notebook's own machine, by what its user asks for."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable

from msgspec import structs

from ...errors import StartError
from ...launch.launchers import hosts, slurm
from ...launch.launchers.batch import Batch
from ...launch.launchers.mpi import Mpi
from ...launch.launchers.schedulers import SCHEDULERS
from ...launch.launchers.shared_launcher import folder_of
from ...launch.launchers.tunnel import command as tunnel
from ...launch.placement import share_out
from ...launch.remote_nodes import RemoteNodes
from ...protocol.common import LOOPBACK
from ...world_info import JobInfo, Launcher
from .start_options import FOR_THE_QUEUE, StartOptions, check

_HOW_MANY = "How many ranks? Write for example -n 8, or --gpus-per-node 4."


def refuse(options: StartOptions) -> None:
    """Refuse what is wrong whatever the machines offer: nothing was started for it, and no scheduler asked.

    Raises:
        StartError: something is.
    """
    check(options)
    far: list[str] = []
    if options.engines == "ssh":
        far = [host.name for host in _hosts(options)[1]]
        for host in far:
            hosts.launcher_for(hosts.Host(host, None), "", options.via)
    elif options.engines == "mpi":
        far = [host for host in _mpi(options)[1] if host not in hosts.HERE]
    elif options.engines in SCHEDULERS or _around(options) is None:
        request(options)
    if far and not options.via:
        hosts.check_address(options.address, far)


def _hosts(options: StartOptions) -> tuple[list[int], list[hosts.Host]]:
    """Return the number of ranks of each node, the notebook's machine first, and the hosts that are other machines.

    Raises:
        StartError: the hosts are not written as such.
    """
    there = hosts.parse(options.hosts)
    counts = hosts.counts(there, options.n)
    far = [host for host in there if not host.is_here]
    if options.tunnel and len(far) < len(there):
        raise StartError("With --tunnel the hosts cannot reach this machine, so it can have no ranks.")
    return [0, *counts] if len(far) == len(there) else counts, far


def on_hosts(options: StartOptions) -> RemoteNodes:
    """Return the nodes that join over ssh.

    Raises:
        StartError: the hosts are not written as such, or there is no way to them.
    """
    counts, far = _hosts(options)
    find = hosts.address_on_the_route if options.via else hosts.address_towards
    address = options.address or (find(far[0].name) if far and not options.tunnel else LOOPBACK)
    launchers = [_surrounded(hosts.launcher_for(host, _python(options), options.via), options) for host in far]
    return RemoteNodes(launchers, counts, address, tunnelled=options.tunnel)


def by_mpi(options: StartOptions) -> RemoteNodes:
    """Return the nodes that mpiexec starts: on hosts that are named, or on those that it knows by itself.

    Raises:
        StartError: it is not said how many ranks there are, or there is no way to the hosts.
    """
    mpi, named, counts = _mpi(options)
    far = [host for host in named if host not in hosts.HERE]
    if options.address or not named:
        address = options.address or hosts.own_address()
    else:
        address = hosts.address_towards(far[0]) if far else LOOPBACK
    return RemoteNodes(mpi.launchers(), [0, *counts], address, mpi)


def _mpi(options: StartOptions) -> tuple[Mpi, list[str], list[int]]:
    """Return what starts the nodes, with the names of their hosts, if there are some, and their numbers of ranks."""
    named: list[str] = []
    if options.hosts:
        there = hosts.parse(options.hosts)
        counts = hosts.counts(there, options.n)
        named = [host.name for host in there]
    elif options.n is not None:
        counts = share_out(options.n, 1 if options.nodes is None else options.nodes)
    else:
        raise StartError("How many ranks? Write for example -n 8 --nodes 2, or --hosts a:4,b:4.")
    return Mpi(named, len(counts), _surrounded(Launcher(_python(options)), options), options.lines), named, counts


def by_batch(options: StartOptions) -> RemoteNodes:
    """Return the nodes that a job of a scheduler has, whose script starts the programs.

    Raises:
        StartError: it is not said how many ranks there are, or the address of this machine is not known.
    """
    asked = request(options)
    counts = share_out(options.n or asked.gpus * asked.nodes, asked.nodes)
    batch = _batch(options)
    return RemoteNodes(batch.launchers(), [0, *counts], options.address or hosts.own_address(), batch)


def _batch(options: StartOptions) -> Batch:
    return Batch(SCHEDULERS[options.engines], request(options), _surrounded(Launcher(_python(options)), options))


def request(options: StartOptions) -> slurm.Request:
    """Return what a job is asked for.

    Raises:
        StartError: it is not said how many ranks there are.
    """
    nodes = options.nodes or 1
    n = options.n or options.gpus_per_node * nodes
    if not n:
        raise StartError(_HOW_MANY)
    return slurm.Request(
        nodes,
        max(share_out(n, nodes)),
        options.gpus_per_node,
        options.partition,
        options.time,
        options.account,
        options.lines,
    )


def a_job(options: StartOptions, kept: slurm.Job | None) -> slurm.Job:
    """Return the job whose nodes are used: the one that is there, or another one, which is put into the queue.

    Args:
        options: the user's.
        kept: the one that the last world had.

    Raises:
        StartError: the scheduler does not take it.
    """
    if kept is not None and not kept.over and kept.look().has_nodes:
        return kept
    return _around(options) or slurm.Job.submit(request(options))


def _around(options: StartOptions) -> slurm.Job | None:
    """Return the job that this notebook is in, unless what is asked for is another one."""
    asks = any(getattr(options, name) != getattr(StartOptions, name) for name in FOR_THE_QUEUE)
    return None if asks else slurm.Job.around()


def in_job(options: StartOptions, job: slurm.Job, tell: Callable[[str], None]) -> RemoteNodes:
    """Wait until a job has its nodes; return those that join.

    Args:
        options: the user's.
        job: the job.
        tell: called with its place in the queue.

    Raises:
        StartError: it has ended, or has fewer nodes than are wanted.
    """
    nodes = job.await_nodes(tell)
    if options.nodes is not None and not job.info.ours:
        if options.nodes > len(nodes):
            raise StartError(f"{job} has {len(nodes)} node{'s' * (len(nodes) > 1)}, and --nodes says {options.nodes}.")
        nodes = nodes[: options.nodes]
    planned = slurm.tasks_around()
    if options.n is None and not job.info.ours and len(planned) >= len(nodes):
        counts = planned[: len(nodes)]
    elif n := options.n or options.gpus_per_node * len(nodes):
        counts = share_out(n, len(nodes))
    else:
        raise StartError(_HOW_MANY)
    launchers = [_surrounded(job.launcher(node, _python(options)), options) for node in nodes]
    return RemoteNodes(launchers, [0, *counts], options.address or hosts.address_on_the_route(nodes[0]))


def in_words(options: StartOptions) -> str:
    """Return what a start would do elsewhere, without doing it: the scheduler's script, and the command of each node.

    Raises:
        StartError: nothing is to be done elsewhere, or it is not said what.
    """
    refuse(options)
    if options.engines == "ssh":
        there = on_hosts(options)
        socket = "/tmp/nbcomm-ID.sock"  # noqa: S108 - as the user will see it
        tunnels = [shlex.join(tunnel(launcher.prefix, socket, "PORT")) for launcher in there.launchers]
        return "\n".join([_written(launcher) for launcher in there.launchers] + (tunnels if there.tunnelled else []))
    if options.engines == "mpi":
        return shlex.join(_mpi(options)[0].command())
    if options.engines in SCHEDULERS:
        texts = _batch(options).files(folder_of("ID"))
        return "\n".join(f"# {folder_of('ID') / name}:\n{text}" for name, text in texts.items())
    if options.engines == "slurm":
        job = _around(options) or slurm.Job(JobInfo("JOB", ours=True))
        said = [request(options).script(), "# On each of its nodes:"] if job.info.ours else []
        return "\n".join([*said, _written(_surrounded(job.launcher("NODE", _python(options)), options))])
    raise StartError("--dry-run shows what is started on other machines; this start has none.")


def _written(launcher: Launcher) -> str:
    return shlex.join(launcher.command("nbcomm.node"))


def _python(options: StartOptions) -> str:
    return options.python or sys.executable


def _surrounded(launcher: Launcher, options: StartOptions) -> Launcher:
    """Return a launcher with what the user wants around each program."""
    return structs.replace(launcher, prologue=options.prologue, wrapper=shlex.split(options.wrapper))
