"""Which nodes a world has beside the notebook's own machine, by what its user asks for."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable

from msgspec import structs

from ...errors import StartError
from ...launch.elsewhere import Elsewhere
from ...launch.placement import share_out
from ...launch.ways import hosts, slurm
from ...launch.ways.batch import Batch
from ...launch.ways.mpi import Mpi
from ...launch.ways.schedulers import SCHEDULERS
from ...launch.ways.together import folder_of
from ...launch.ways.tunnel import command as tunnel
from ...protocol.common import LOOPBACK
from ...world_info import JobInfo, Way
from .wishes import FOR_THE_QUEUE, Wishes, check

_HOW_MANY = "How many ranks? Write for example -n 8, or --gpus-per-node 4."


def refuse(wishes: Wishes) -> None:
    """Refuse what is wrong whatever the machines offer: nothing was started for it, and no scheduler asked.

    Raises:
        StartError: something is.
    """
    check(wishes)
    far: list[str] = []
    if wishes.engines == "ssh":
        far = [host.name for host in _hosts(wishes)[1]]
        for host in far:
            hosts.way_to(hosts.Host(host, None), "", wishes.via)
    elif wishes.engines == "mpi":
        far = [host for host in _mpi(wishes)[1] if host not in hosts.HERE]
    elif wishes.engines in SCHEDULERS or _around(wishes) is None:
        request(wishes)
    if far and not wishes.via:
        hosts.check_address(wishes.address, far)


def _hosts(wishes: Wishes) -> tuple[list[int], list[hosts.Host]]:
    """Return the number of ranks of each node, the notebook's machine first, and the hosts that are other machines.

    Raises:
        StartError: the hosts are not written as such.
    """
    there = hosts.parse(wishes.hosts)
    counts = hosts.counts(there, wishes.n)
    far = [host for host in there if not host.is_here]
    if wishes.tunnel and len(far) < len(there):
        raise StartError("With --tunnel the hosts cannot reach this machine, so it can have no ranks.")
    return [0, *counts] if len(far) == len(there) else counts, far


def on_hosts(wishes: Wishes) -> Elsewhere:
    """Return the nodes that join over ssh.

    Raises:
        StartError: the hosts are not written as such, or there is no way to them.
    """
    counts, far = _hosts(wishes)
    find = hosts.address_on_the_route if wishes.via else hosts.address_towards
    address = wishes.address or (find(far[0].name) if far and not wishes.tunnel else LOOPBACK)
    ways = [_surrounded(hosts.way_to(host, _python(wishes), wishes.via), wishes) for host in far]
    return Elsewhere(ways, counts, address, tunnelled=wishes.tunnel)


def by_mpi(wishes: Wishes) -> Elsewhere:
    """Return the nodes that mpiexec starts: on hosts that are named, or on those that it knows by itself.

    Raises:
        StartError: it is not said how many ranks there are, or there is no way to the hosts.
    """
    mpi, named, counts = _mpi(wishes)
    far = [host for host in named if host not in hosts.HERE]
    if wishes.address or not named:
        address = wishes.address or hosts.own_address()
    else:
        address = hosts.address_towards(far[0]) if far else LOOPBACK
    return Elsewhere(mpi.ways(), [0, *counts], address, mpi)


def _mpi(wishes: Wishes) -> tuple[Mpi, list[str], list[int]]:
    """Return what starts the nodes, with the names of their hosts, if there are some, and their numbers of ranks."""
    named: list[str] = []
    if wishes.hosts:
        there = hosts.parse(wishes.hosts)
        counts = hosts.counts(there, wishes.n)
        named = [host.name for host in there]
    elif wishes.n is not None:
        counts = share_out(wishes.n, 1 if wishes.nodes is None else wishes.nodes)
    else:
        raise StartError("How many ranks? Write for example -n 8 --nodes 2, or --hosts a:4,b:4.")
    return Mpi(named, len(counts), _surrounded(Way(_python(wishes)), wishes), wishes.lines), named, counts


def by_batch(wishes: Wishes) -> Elsewhere:
    """Return the nodes that a job of a scheduler has, whose script starts the programs.

    Raises:
        StartError: it is not said how many ranks there are, or the address of this machine is not known.
    """
    asked = request(wishes)
    counts = share_out(wishes.n or asked.gpus * asked.nodes, asked.nodes)
    batch = _batch(wishes)
    return Elsewhere(batch.ways(), [0, *counts], wishes.address or hosts.own_address(), batch)


def _batch(wishes: Wishes) -> Batch:
    return Batch(SCHEDULERS[wishes.engines], request(wishes), _surrounded(Way(_python(wishes)), wishes))


def request(wishes: Wishes) -> slurm.Request:
    """Return what a job is asked for.

    Raises:
        StartError: it is not said how many ranks there are.
    """
    nodes = wishes.nodes or 1
    n = wishes.n or wishes.gpus_per_node * nodes
    if not n:
        raise StartError(_HOW_MANY)
    return slurm.Request(
        nodes,
        max(share_out(n, nodes)),
        wishes.gpus_per_node,
        wishes.partition,
        wishes.time,
        wishes.account,
        wishes.lines,
    )


def a_job(wishes: Wishes, kept: slurm.Job | None) -> slurm.Job:
    """Return the job whose nodes are used: the one that is there, or another one, which is put into the queue.

    Args:
        wishes: the user's.
        kept: the one that the last world had.

    Raises:
        StartError: the scheduler does not take it.
    """
    if kept is not None and not kept.over and kept.look().has_nodes:
        return kept
    return _around(wishes) or slurm.Job.submit(request(wishes))


def _around(wishes: Wishes) -> slurm.Job | None:
    """Return the job that this notebook is in, unless what is asked for is another one."""
    asks = any(getattr(wishes, name) != getattr(Wishes, name) for name in FOR_THE_QUEUE)
    return None if asks else slurm.Job.around()


def in_job(wishes: Wishes, job: slurm.Job, tell: Callable[[str], None]) -> Elsewhere:
    """Wait until a job has its nodes; return those that join.

    Args:
        wishes: the user's.
        job: the job.
        tell: called with its place in the queue.

    Raises:
        StartError: it has ended, or has fewer nodes than are wanted.
    """
    nodes = job.await_nodes(tell)
    if wishes.nodes is not None and not job.info.ours:
        if wishes.nodes > len(nodes):
            raise StartError(f"{job} has {len(nodes)} node{'s' * (len(nodes) > 1)}, and --nodes says {wishes.nodes}.")
        nodes = nodes[: wishes.nodes]
    planned = slurm.tasks_around()
    if wishes.n is None and not job.info.ours and len(planned) >= len(nodes):
        counts = planned[: len(nodes)]
    elif n := wishes.n or wishes.gpus_per_node * len(nodes):
        counts = share_out(n, len(nodes))
    else:
        raise StartError(_HOW_MANY)
    ways = [_surrounded(job.way(node, _python(wishes)), wishes) for node in nodes]
    return Elsewhere(ways, [0, *counts], wishes.address or hosts.address_on_the_route(nodes[0]))


def in_words(wishes: Wishes) -> str:
    """Return what a start would do elsewhere, without doing it: the scheduler's script, and the command of each node.

    Raises:
        StartError: nothing is to be done elsewhere, or it is not said what.
    """
    refuse(wishes)
    if wishes.engines == "ssh":
        there = on_hosts(wishes)
        tunnels = [shlex.join(tunnel(way.prefix, "/tmp/nbcomm-ID.sock", "PORT")) for way in there.ways]  # noqa: S108
        return "\n".join([_written(way) for way in there.ways] + (tunnels if there.tunnelled else []))
    if wishes.engines == "mpi":
        return shlex.join(_mpi(wishes)[0].command())
    if wishes.engines in SCHEDULERS:
        texts = _batch(wishes).files(folder_of("ID"))
        return "\n".join(f"# {folder_of('ID') / name}:\n{text}" for name, text in texts.items())
    if wishes.engines == "slurm":
        job = _around(wishes) or slurm.Job(JobInfo("JOB", ours=True))
        said = [request(wishes).script(), "# On each of its nodes:"] if job.info.ours else []
        return "\n".join([*said, _written(_surrounded(job.way("NODE", _python(wishes)), wishes))])
    raise StartError("--dry-run shows what is started on other machines; this start has none.")


def _written(way: Way) -> str:
    return shlex.join(way.command("nbcomm.node"))


def _python(wishes: Wishes) -> str:
    return wishes.python or sys.executable


def _surrounded(way: Way, wishes: Wishes) -> Way:
    """Return a way with what the user wants around each program."""
    return structs.replace(way, prologue=wishes.prologue, wrapper=shlex.split(wishes.wrapper))
