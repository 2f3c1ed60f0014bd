"""The nodes of a world, as its notebook steers them: what concerns one rank goes to its node, the rest to all."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import zmq
from msgspec import structs

from ..errors import StartError, StateError
from ..faults import take_all
from ..node.join_token import JoinToken
from ..protocol.common import LOOPBACK
from ..protocol.nodes import key_of, name_of
from ..threads import keep
from ..world_info import JobInfo, JoinedInfo, Launcher, LinkInfo
from .launchers.joined import JoinedNode
from .launchers.shared_launcher import SharedLauncher, SharedProgram, forget
from .launchers.tunnel import Tunnels
from .node_client import NodeClient
from .placement import NodeShare
from .remote_nodes import RemoteNodes
from .rendezvous import Rendezvous

if TYPE_CHECKING:
    from ..protocol import Exited
    from .head import Head
    from .launchers.slurm import Job
    from .process_table import Process

_COMPARED = 60.0
"""Seconds for which a comparison of clocks holds: quartz drifts by milliseconds in that time."""

_TOLD = 10.0
"""Seconds in which a scheduler tells that it has taken a job's nodes back, which have heard it before."""

_END = 10.0
"""Seconds that a node has to end its processes."""


class Nodes:
    """The head, and the nodes that have joined.

    Args:
        head: the node on the notebook's machine.
        job: a scheduler's job that has nodes for this world already.

    Attributes:
        head: as above.
        home: the world's directory.
        link: to all daemons and ranks.
        rendezvous: where the ranks of all nodes meet.
        job: the scheduler's job that the other nodes are in; None if they are in none.
        compares: whether calls of ranks on different nodes are compared, which costs each a round trip.
    """

    def __init__(self, head: Head, job: Job | None = None) -> None:
        self.head = head
        self.job = job
        self.compares = True
        self.home = head.home
        self.link = head.link
        self._all: list[NodeClient] = [head]
        self._of_key: dict[str, NodeClient] = {}  # of each process that is not on the head
        self._address = ""
        self._joined: dict[int, JoinedInfo] = {}
        self._size = 0
        self.rendezvous = Rendezvous(self)
        self._tunnels = Tunnels()
        self._compared = -math.inf
        self._hearers: tuple[Callable[[Exited], None], Callable[[], None]] | None = None

    def __iter__(self) -> Iterator[NodeClient]:
        return iter(list(self._all))

    def of(self, key: str) -> NodeClient:
        """Return the node that a process is on."""
        return self._of_key.get(key, self.head)

    # ── nodes that join ─────────────────────────────────────────────────────────────────────────────

    def listen(self, host: str) -> None:
        """Let other nodes connect to an address of this machine.

        Raises:
            zmq.ZMQError: it has no such address.
        """
        self._address = self.link.listen(f"tcp://{host}:*")

    def _invite(self, launcher: Launcher, number: int, node: int, *, tunnelled: bool = False) -> JoinedInfo:
        """Return what is known of a node before it joins: its numbers, a key of its own, and its way to here."""
        public, secret = (key.decode() for key in zmq.curve_keypair())
        address = f"ipc:///tmp/nbcomm-{self.home.id}-{number}.sock" if tunnelled else self._address
        link = LinkInfo(address, self.home.read_link().server_public, public, secret, name_of(number), tunnelled)
        return JoinedInfo(number, node, link, launcher, port=int(self._address.rpartition(":")[2]) if tunnelled else 0)

    def _let_join(self, invited: Sequence[JoinedInfo], shared_launcher: SharedLauncher | None) -> list[NodeClient]:
        shared = None if shared_launcher is None else shared_launcher.begin([self._token(info) for info in invited])
        joining = [self._enter(info, shared) for info in invited]
        for node in joining:
            node.launch()
        return joining

    def _token(self, info: JoinedInfo) -> JoinToken:
        return JoinToken(self.home.id, info.link, self.head.lease)

    def _enter(self, info: JoinedInfo, shared: SharedProgram | None = None) -> NodeClient:
        """Make the client of another node, which may connect from now on."""
        taken_back = partial(self._taken_back, info.launcher.host)
        server = JoinedNode(self._token(info), info.launcher, self._is_over, taken_back, shared=shared)
        node = NodeClient(info.number, server, self.head.numbers, self.head.lease)
        node.link = self.link
        node.doubt = self._doubt
        self._name(node, info.node, info.launcher.host)
        if self._hearers is not None:
            node.report_to(*self._hearers)
        self._joined[info.number] = info
        self._all.append(node)
        self.place(info.ranks, node)
        self.link.add(info.number, info.link.client_public, node.hear)
        return node

    @staticmethod
    def _name(node: NodeClient, number: int, host: str) -> None:
        node.where = f" of node {number}" + (f" ({host})" if host else "")

    def add_here(self, counts: Sequence[int], deadline: float) -> None:
        """Let other nodes join that are on this machine, too, and place the ranks on all.

        Args:
            counts: the number of ranks of each node, the head first.
            deadline: by `time.monotonic`, until which they must have joined.

        Raises:
            StartError: a node has not joined; the message contains what it said.
        """
        self.add_all(RemoteNodes([Launcher(sys.executable)] * (len(counts) - 1), counts, LOOPBACK), lambda _: deadline)

    def add_all(self, there: RemoteNodes, until: Callable[[Sequence[NodeClient]], float]) -> None:
        """Let other nodes join, and place the ranks on all.

        Args:
            there: those nodes.
            until: called when all are started; returns the time, by `time.monotonic`, until which they must have
                joined.

        Raises:
            StartError: a node has not joined; the message contains what it said.
        """
        counts, shared_launcher = there.counts, there.shared_launcher
        try:
            self.listen(there.address)
        except zmq.ZMQError as error:
            raise StartError(
                f"Nothing can listen at {there.address}: {error}. Name an address of this machine."
            ) from error
        before = 1 if counts[0] else 0  # a head without ranks is no node to users
        invited = [
            self._invite(launcher, 1 + place, before + place, tunnelled=there.tunnelled)
            for place, launcher in enumerate(there.launchers)
        ]
        self._tunnels.open(invited)
        try:
            joining = self._let_join(invited, shared_launcher)
            deadline = until(joining)
            for node in joining:
                node.wait_ready(max(0.0, deadline - time.monotonic()))
                self._compare(node)
        finally:
            if shared_launcher is not None:
                shared_launcher.end()
        if shared_launcher is not None:
            counts = self._find_machines(shared_launcher, counts)
        self._size = sum(counts)
        first = 0
        for node, count in zip(self._all, counts, strict=True):
            if node is not self.head:
                self.place(range(first, first + count), node)
            first += count

    def _find_machines(self, shared_launcher: SharedLauncher, counts: Sequence[int]) -> list[int]:
        """Note on which machine each node is, and return the number of ranks of each; all have told their facts."""
        found = [node.told.host if node.told is not None else "" for node in self._all[1:]]
        for node, host in zip(self._all[1:], found, strict=True):
            info = self._joined[node.number]
            self._name(node, info.node, host)
            self._joined[node.number] = structs.replace(info, launcher=structs.replace(info.launcher, host=host))
        return [counts[0], *shared_launcher.in_order(counts[1:], found)]

    def _doubt(self) -> float:
        """Ask for a look at the job, as a node has ended; return the seconds that the look may take."""
        if self.job is None:
            return 0.0
        self.job.doubted.set()
        return _TOLD

    def _is_over(self) -> bool:
        """Whether the scheduler has taken the nodes back, so that nothing can run there."""
        return self.job is not None and bool(self.job.over)

    def _taken_back(self, host: str) -> str:
        """Return why nothing can be started on a machine of the job any more; empty where it can."""
        return self.job.without_heal(host) if self.job is not None else ""

    def shares(self) -> list[NodeShare]:
        """Return what each node contributes; all have told it."""
        made = []
        for node in self._all:
            assert node.told is not None  # noqa: S101 - for mypy
            assert node.ready is not None  # noqa: S101
            ranks = len(self.ranks(node))
            made.append(NodeShare(ranks, node.told.cores, node.ready.gpus, self.address(node), node.ready.nccl))
        return made

    @property
    def host(self) -> str:
        """The address of this machine at which the nodes reach it."""
        return self._address.removeprefix("tcp://").rpartition(":")[0] or LOOPBACK

    @property
    def are_here(self) -> bool:
        """Whether all of them are on this machine."""
        return not any(info.launcher.is_far for info in self._joined.values())

    def _compare(self, node: NodeClient) -> None:
        """Compare the versions of a node with the head's.

        Raises:
            StartError: they differ, or the node does not answer.
        """
        here, there = self.head.told or self.head.facts(), node.facts()
        different = [what for what, version in here.versions.items() if there.versions.get(what) != version]
        if different:
            have = ", ".join(f"{what} {there.versions.get(what, 'none')}" for what in different)
            want = ", ".join(f"{what} {here.versions[what]}" for what in different)
            number = self._joined[node.number].node
            raise StartError(
                f"Node {number} ({there.host}) has {have}, and this machine has {want}; all nodes of a world need the "
                "same. Install it there, or start Jupyter with the other Python."
            )

    def place(self, ranks: Iterable[int], node: NodeClient) -> None:
        """Set the node that these ranks are on; without this, it is the head."""
        ranks = list(ranks)
        self._joined[node.number] = structs.replace(self._joined[node.number], ranks=ranks)
        self._of_key.update({key_of(rank): node for rank in ranks})

    # ── another notebook ────────────────────────────────────────────────────────────────────────────

    def joined(self) -> list[JoinedInfo]:
        """Return what another notebook needs to know of the nodes that have joined."""
        return [self._joined[node.number] for node in self._all[1:]]

    def take_up(self, joined: Sequence[JoinedInfo], size: int, job: JobInfo | None = None) -> None:
        """Speak with the nodes that have joined under another notebook.

        Args:
            joined: what that has written down.
            size: the number of ranks on all nodes.
            job: the scheduler's job that they are in.

        Raises:
            StateError: another program listens where they look for the notebook.
        """
        self._size = size
        if job is not None:
            from .launchers.slurm import Job

            self.job = Job(job)
        if not joined:
            return
        address = f"tcp://{LOOPBACK}:{joined[0].port}" if joined[0].port else joined[0].link.address
        try:
            self._address = self.link.listen(address)
        except zmq.ZMQError as error:
            raise StateError(
                f"The other nodes of this world look for the notebook at {address}, and nothing can listen there now: "
                f"{error}. Try again; %distributed start starts another world."
            ) from error
        self._tunnels.begin(joined)
        for info in joined:
            self._enter(info)

    def learn(self) -> None:
        """Let each node tell what is true of it; they are connected.

        Raises:
            StartError: one does not answer.
        """
        for node in self._all if len(self._all) > 1 else ():
            node.facts()

    def compare_clocks(self) -> dict[int, float]:
        """Measure by how many seconds the clocks of other machines are ahead of this one's.

        Returns:
            That of each rank's machine; nothing for ranks on this one.
        """
        if self.are_here:
            return {}
        if time.monotonic() - self._compared > _COMPARED:
            self._compared = time.monotonic()
            for node in self._all[1:]:
                if not node.lost:
                    with suppress(StartError):  # it does not answer: what is known of it is kept
                        node.facts()
        return {rank: node.ahead for node in self._all[1:] for rank in self.ranks(node)}

    def numbers(self, ranks: Iterable[int]) -> list[int]:
        """Return the node of each of these ranks; nothing where there is only one node."""
        return [self.of(key_of(rank)).number for rank in ranks] if len(self._all) > 1 else []

    # ── processes ───────────────────────────────────────────────────────────────────────────────────

    @property
    def processes(self) -> Mapping[str, Process]:
        """By key, the process that was started last."""
        return ChainMap(*(node.processes for node in self._all))

    @property
    def gone(self) -> list[NodeClient]:
        """The nodes whose daemon has ended."""
        return [node for node in self._all if node.gone]

    def without_heal(self, key: str) -> str:
        """Return why a process cannot be replaced where it was, and what to do, in sentences; empty where it can be."""
        return self.of(key).without_heal

    def log_tail(self, key: str, lines: int = 40) -> str:
        """Return the end of the log of a key's process."""
        return self.of(key).log_tail(key, lines)

    def report_to(self, on_exit: Callable[[Exited], None], on_daemon: Callable[[], None] = lambda: None) -> None:
        """Set the functions that get reports of all nodes; see `NodeClient.report_to`."""
        self._hearers = on_exit, on_daemon
        for node in self._all:
            node.report_to(on_exit, on_daemon)

    # ── all nodes ───────────────────────────────────────────────────────────────────────────────────

    def set_lease(self, seconds: float) -> None:
        """Set how long the world lives without a notebook."""
        for node in self._all:
            node.set_lease(seconds)

    def wait_claimed(self, timeout: float) -> None:
        """Wait until all daemons have reported what is known of the processes.

        Raises:
            StartError: one has not.
        """
        deadline = time.monotonic() + timeout
        for node in self._all:
            node.wait_claimed(max(0.0, deadline - time.monotonic()))

    def wait_for_ends(self, timeout: float) -> None:
        """Wait until all ends that the nodes can see now are reported."""
        deadline = time.monotonic() + timeout
        for node in self._all:
            if not node.lost:
                node.wait_for_ends(max(0.0, deadline - time.monotonic()))

    def tell(self) -> None:
        """Tell of the ends that whoever hears of them has not taken in; see `ProcessTable.tell`."""
        for node in self._all:
            node.tell()

    def look(self) -> None:
        """Ask silent nodes for a word; see `NodeClient.look`."""
        for node in self._all:
            node.look()

    def lose_joined(self) -> None:
        """Declare the processes of the other nodes dead: the scheduler has taken the nodes back."""
        why = self.job.over if self.job is not None else ""
        for node in self._all[1:]:
            node.lose(f"was taken back: {why}")

    # ── what the rendezvous asks ────────────────────────────────────────────────────────────────────

    def keys(self, ranks: Iterable[int]) -> dict[str, str]:
        """Return the names of the present processes of ranks, by their public keys."""
        return self.link.keys(ranks)

    def key(self, node: NodeClient) -> str:
        """Return a node's public key."""
        return (self._joined[node.number].link if node is not self.head else self.home.read_link()).client_public

    def address(self, node: NodeClient) -> str:
        """Return the address at which other nodes reach one."""
        if node is self.head:
            return self.host
        return node.told.address if node.told is not None else ""

    def ranks(self, node: NodeClient) -> list[int]:
        """Return the ranks of a node."""
        return [rank for rank in range(self._size) if self.of(key_of(rank)) is node]

    @property
    def are_reached_by_ssh_alone(self) -> bool:
        """Whether the other nodes reach this machine through tunnels."""
        return self._tunnels.are_open

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────

    def release(self) -> None:
        """Release the world without ending it; its lease runs from now on."""
        joined = self._all[1:]
        take_all(
            *(node.leave for node in joined),
            *(node.close for node in joined),
            partial(self._tunnels.close, removes=False),
            self.head.release,
        )

    def shutdown(self) -> None:
        """End every process of the world on each node, and wait until that is done."""
        joined, ending = self._all[1:], list[threading.Thread]()
        take_all(
            *(node.leave for node in self._all),
            *(partial(self._begin_end, node, ending) for node in joined),
            partial(self.head.end, _END),
            lambda: take_all(*(thread.join for thread in ending)),
            *(node.close for node in joined),
            partial(self._tunnels.close, removes=True),
            self._forget_programs,
            self._cancel_job,
            self.head.finish,
        )

    @staticmethod
    def _begin_end(node: NodeClient, ending: list[threading.Thread]) -> None:
        ending.append(keep("nbcomm-end", partial(node.end, _END), again=0))

    def _forget_programs(self) -> None:
        if any(info.launcher.shared for info in self._joined.values()):
            forget(self.home.id)  # where another notebook has started the programs, what they said is there

    def _cancel_job(self) -> None:
        if self.job is not None:
            self.job.cancel()
