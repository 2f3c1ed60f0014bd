"""This rank's membership in the world: its groups are formed, aborted, and re-formed.

One *generation* is one life of the groups. It ends when a wait is hopeless, at an interrupt in a collective, or after a
cell that left something unfinished. Then every rank forms all its groups again, in the order in which they were made,
and no message of the last generation can reach the next one.

The main thread forms; any thread may abort. If torch does not let nbcomm hand out its groups (see
`torch_internals.check`), they are torch's own: destroyed and initialised again, and handles made before are lost.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist

from ... import errors
from ...comm import Communicator, lending
from ...node.dealers import Outward
from ...protocol import FormGroups, Mismatch, RankPlacement, rank_lists
from ...torch_internals import c10d, ddp_fsdp, nccl, process_groups, unfinished
from ...torch_internals.check import self_check
from ...world_info import LinkInfo
from ..clock import clock
from ..collectives.fingerprints import FingerprintBoard, in_child
from . import selftest
from .environment import interface_of, seed_differently, torchrun_environment
from .generation import PATIENCE, Generation
from .membership import Groups, exchange, without
from .process_group import RankGroup
from .rendezvous import StoreClient, stand_in
from .store_ways import FarWay, UnixWay, WayToStore

_WORLD = "0"
"""Torch's name of the first group that is made; after it was destroyed, it is made again."""
_SETTLES = 0.25
"""Seconds in which a GPU has done what it can do, after a cell has failed."""

_REPLACED = (
    "the cell replaced the world's process group with its own (dist.init_process_group); the next cell has the world's "
    "again, and the groups that the cell created in its own are lost."
)

_ANEW = "The process groups were re-formed after this started; start it again."


class World(Generation):
    """The groups of this process, and what is wrong with them.

    Args:
        store_socket: returns the socket at which the ranks of a generation meet.
        board: the directory of the pages on which the ranks of this node compare their calls.
        info: has this rank's own keys, for other nodes.
        tell: sends a message to the notebook; None if there is none.
        scope: the namespace of the cells.
    """

    def __init__(
        self,
        store_socket: Callable[[int], Path],
        board: Path,
        info: LinkInfo,
        tell: Callable[[Mismatch], object] | None = None,
        scope: Callable[[], dict[str, Any] | None] = lambda: None,
    ) -> None:
        super().__init__(tell, scope)
        self._store_socket = store_socket
        self._board_folder = board
        self._outward = Outward(info)
        self._absent: tuple[int, ...] = ()
        self._environment: dict[str, str] = {}
        self._inits = 0
        self._made: WeakSet[RankGroup] = WeakSet()
        self._patches = ExitStack()
        """Restores what nbcomm has replaced in torch."""
        in_child(self._forked)

    # ── forming ─────────────────────────────────────────────────────────────────────────────────────

    def form(self, order: FormGroups) -> Communicator:
        """Take a place and join the process group, or re-form all groups; every living rank must do it.

        Args:
            order: the place and the generation.

        Returns:
            The communicator over the whole world; always the same one.

        Raises:
            SelfTestError: torch does not do with nbcomm's groups what it should; form them with ``order.plain``.
        """
        clock.ahead = order.ahead
        if self.comm is not None:
            self._form_again(order)
            return self.comm
        place = order.place
        self._withdraw()
        self._become(place, order)
        self._open(order)
        self._join(order)
        if order.generation > 1 and not self.plain:
            self._join_groups_of_others(order)
        self._meet_board(order)
        self._test(order)
        self.comm = Communicator(
            rank=place.rank,
            world_size=place.world_size,
            local_rank=place.local_rank,
            node_rank=place.node_rank,
            local_world_size=place.local_world_size,
            device=torch.device(place.device),
        )
        self.comm.lanes.watch = self.record
        self.comm.journal = self.record.journal
        return self.comm

    def _open(self, order: FormGroups) -> None:
        """Set up what a first generation needs: the store, the board, and nbcomm's groups in torch."""
        place = order.place
        self._absent = rank_lists.read(order.absent)
        self._inits = 0
        self.place, self.rank, self.generation = place, place.rank, order.generation
        self.gpu = nccl.device_of(place.device, place.local_rank)
        self.on_gpu = place.device != "cpu"
        self.plain = order.plain
        if not self.plain and (why := self_check(self.gloo)):
            raise errors.SelfTestError(why)
        self._store = StoreClient(self._way_to_store(order), order.timeout)
        self.board = FingerprintBoard(self._board_folder, place.rank)
        self._patches.callback(lending.lend(lambda: not self.replaced, "This cell"))
        if self.plain:
            self._patches.enter_context(self.gloo.following_torch())
        else:
            following, ours = self.gloo.following_torch, self._is_ours
            self._patches.callback(process_groups.hand_out(self._make_group, ours, following, place.backend))
            self._patches.callback(process_groups.meet_in(self._store_of_a_cell))
            self._patches.callback(stand_in(self._store_of_an_agent))
            self._patches.callback(c10d.watch_waits(self.record.wait))
            self._patches.callback(c10d.watch_new_groups(self._watched_new_group))
            self._patches.callback(ddp_fsdp.follow_modules())

    def _withdraw(self) -> None:
        """Undo a first attempt to form the groups, if there was one."""
        with self._lock:
            self._free()
            self.record.await_ends()
            if dist.is_initialized():
                lending.destroy_world()
            process_groups.set_group_count(0)  # an aborted attempt has named a group; the other ranks' may not have
            self._patches.close()
            self._groups.clear()
            self.gloo.forget()
            self.record.forget()
            self._store = self._broken = None
            self.record.aborted = 0.0

    def _test(self, order: FormGroups) -> None:
        """Compare what torch reports of the world with the truth, before anything uses it."""
        place = order.place
        selftest.compare_world(place.rank, place.world_size)
        if order.absent:  # what needs all ranks cannot be tried
            return
        world = dist.group.WORLD
        # Before the sums, which need this rank: behind them others may have formed anew, and shut what they had.
        connected = place.world_size == 1 or "gloo" not in place.backend or bool(self.gloo.connections())
        with self._by_everyone(), world.tried_out() if isinstance(world, RankGroup) else nullcontext():
            selftest.reduce_world(place.rank, place.world_size, torch.device(place.device))
        self.record.journal.begin()
        if not self.plain:
            selftest.compare_hold(handed_out=isinstance(world, RankGroup), connected=connected)

    def _join(self, order: FormGroups) -> None:
        place = order.place
        device = torch.device(place.device)
        dist.init_process_group(
            place.backend,
            store=self._store,
            rank=place.rank,
            world_size=place.world_size,
            timeout=timedelta(seconds=order.timeout),
            # Binding lets NCCL connect at once, and errors name the GPU; groups of ours do so themselves.
            device_id=device if self.plain and device.type == "cuda" and "nccl" in place.backend else None,
        )

    def _store_of_a_cell(self) -> Any:
        """Return the store for a cell's own ``init_process_group``; None if it wants to meet other processes."""
        if self._store is None or self._is_elsewhere():
            return None
        self._store.settle(meets=True)
        self._inits += 1
        return process_groups.part_of(self._store, f"init:{self._inits}")

    def _is_elsewhere(self) -> bool:
        """Return whether a cell means another world: tutorials set MASTER_ADDR and MASTER_PORT, too, to anything."""
        return any(os.environ.get(name) != self._environment[name] for name in ("RANK", "WORLD_SIZE"))

    def _store_of_an_agent(self) -> Any:
        """Return the store that torchrun's agent would serve: until the groups are formed again, or a script ends."""
        there = dist.is_initialized() and not self._is_elsewhere()
        return process_groups.part_of(process_groups.default_store(), "agent") if there else None

    def _is_ours(self, of: tuple[int, int] | None) -> bool:
        """Return whether a group is part of this world, and not of another one that a cell has made."""
        if of is None:
            return isinstance(dist.group.WORLD, RankGroup)
        return self.place is not None and of == (self.place.rank, self.place.world_size)

    def _make_group(self, *args: Any) -> RankGroup:
        group = RankGroup(self, *args)
        self._made.add(group)
        # A destroyed group has connections and threads as long as it is referenced. It is kept while a call of it is
        # under way: its end would wait for that call.
        alive, going = _alive(), self.record.going()
        self._groups = [*(one for one in self._groups if one in alive or one.called in going), group]
        group.form(self._absent)
        return group

    def _form_again(self, order: FormGroups) -> None:
        """End this generation and begin the next one; every living rank does the same, each at its own pace.

        ::

            rank 0                            rank 1                        rank 2, a new process: `form`
            ends its generation               ends its generation
            connects to a new store           connects to it                connects to it
            writes which groups it has        writes which groups it has
            ──────────────────────── they meet in the world's group ────────────────────────
            forms its further groups,         forms its further groups,     reads that, and joins those
            in the order of their making      in the same order             that the dead rank 2 was in
            ────────── they look at each other's pages, and try the world with an all_reduce ──────────
        """
        assert self._store is not None  # noqa: S101 - for mypy: a first generation has one
        unfinished.finish()  # where it could not be done behind the cell
        self._end_generation(order)
        self._absent = rank_lists.read(order.absent)
        self._inits = 0
        self._store.retarget(self._way_to_store(order))
        self.record.forget()
        if self.replaced or (self.plain and dist.is_initialized()):
            lending.destroy_world()
        if self.plain:
            self._join(order)
        else:
            self._form_groups_again(order)
        self._meet_board(order)
        self._test(order)
        self._look_alert()

    def _end_generation(self, order: FormGroups) -> None:
        assert self.comm is not None  # noqa: S101 - for mypy: the first generation has made it
        with self._lock:
            if self._broken is None:  # for those that are still under way
                self._broken = errors.CollectiveError(_ANEW)
            self._free()
        # What is still under way must end before its group is let go. That may take seconds: it is waited for without
        # the lock, which the link's thread takes. Calls are refused meanwhile, as the generation has ended.
        self.record.await_ends()
        self._await_device()
        self.comm.lanes.end(_ANEW, PATIENCE)
        with self._lock:
            self.generation = order.generation
            self.gloo.forget()
            self._broken = None
            self.record.aborted = 0.0

    def _await_device(self) -> None:
        """Wait until NCCL has let go of the GPU.

        Raises:
            CollectiveError: it has not, and may never do so.
        """
        if not self.aborts.wait(nccl.PATIENCE):
            raise errors.CollectiveError(
                f"NCCL has not let go of {self.gpu} within {nccl.PATIENCE:g} s, so rank {self.rank} cannot form its "
                f"groups again. Type %distributed heal {self.rank} in a cell of its own to put a new process in its "
                "place; the other ranks keep their variables."
            )

    def _form_groups_again(self, order: FormGroups) -> None:
        """Give each group a new inside: all let go of the old ones before the first is formed."""
        membership = self._exchange_membership(order)
        ddp_fsdp.reset_interrupted_modules()
        alive = _alive()
        self._groups = sorted(
            (group for group in self._groups if group in alive), key=lambda group: _turn(group.called)
        )
        for group in self._groups:
            group.drop()
        formed = list(self._groups)
        if not dist.is_initialized():  # a cell has destroyed it
            self._join(order)
        for group in formed:
            gone = without(membership, group.called, group.members) if group.called != _WORLD else ()
            group.form(self._absent, gone, timedelta(seconds=order.timeout))  # a user's timeout is one for calls
        process_groups.set_group_count(_count(membership))

    def _exchange_membership(self, order: FormGroups) -> dict[int, Groups]:
        assert self._store is not None  # noqa: S101 - for mypy
        out = {*rank_lists.read(order.newcomers), *self._absent}
        return exchange(self._store, self.rank, [rank for rank in range(order.place.world_size) if rank not in out])

    def _join_groups_of_others(self, order: FormGroups) -> None:
        """Take the place of a dead rank in the groups that it was in."""
        membership = self._exchange_membership(order)
        groups: dict[str, tuple[str, str]] = {}
        for other in membership.values():  # each knows only its own groups; others may have the same name
            groups.update({name: made for name, made in other.named.items() if self.rank in rank_lists.read(made[0])})
        process_groups.set_group_count(_count(membership))
        known = {name for _, name, *_ in process_groups.known_groups()}
        for name in sorted(groups.keys() - known, key=_turn):
            ranks, backend = groups[name]
            members = [*rank_lists.read(ranks)]
            if not without(membership, name, members):
                process_groups.join_group(name, members, backend, timedelta(seconds=order.timeout))

    def _way_to_store(self, order: FormGroups) -> WayToStore:
        """Return the way to the store of a generation: it may be on another node."""
        if order.nodes and order.nodes[order.place.rank] != order.store:
            (there,) = (listener for listener in order.listeners if listener.node == order.store)
            return FarWay(self._outward.open(), there, order.generation)
        return UnixWay(self._store_socket(order.generation))

    def _meet_board(self, order: FormGroups) -> None:
        if self.board is not None:
            absent = set(self._absent)
            there = [other for other in order.listeners if other.node != order.nodes[self.rank]]
            self.board.replicate(order.generation, there, self._outward.open() if there else None)
            self.board.meet([rank for rank in range(order.place.world_size) if rank not in absent], order.nodes)
            for group in self._groups:
                group.look_at_board()

    def _become(self, place: RankPlacement, order: FormGroups) -> None:
        self._environment = torchrun_environment(place, order.master_addr, order.master_port)
        os.environ.update(self._environment)
        # gloo listens where the hostname resolves, often on every interface: name one.
        self.gloo.host = place.address
        os.environ["GLOO_SOCKET_IFNAME"] = interface = interface_of(place.address)
        # gloo asks the store for all members at once, and not for each one twice; it looks here for each group.
        os.environ.setdefault("GLOO_ENABLE_STORE_V2_API", "1")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)  # NCCL would take any interface but loopback
        os.environ["OMP_NUM_THREADS"] = str(place.threads)
        torch.set_num_threads(place.threads)
        if "nccl" in place.backend:
            os.environ.update(nccl.settings(place.sharing))
        if place.device.startswith("cuda"):
            torch.cuda.set_device(torch.device(place.device))
        seed_differently()

    # ── a cell begins and ends ──────────────────────────────────────────────────────────────────────

    def begin(self, run: int, ranks: list[int] | None) -> None:
        """Begin a request that runs on these ranks; None for all. Main thread."""
        self._run = self.record.run = run
        self.told = 0.0
        self.record.settle()
        self._settle_store(meets=False)
        if self.comm is not None:
            everyone = ranks is None or len(ranks) == self.comm.world_size
            self.comm.cell_ranks = None if everyone else ranks
        self._look_alert()

    def end(self) -> None:
        """End the request."""
        self._run = None

    def by_itself(self) -> AbstractContextManager[None]:
        """Refuse what needs other ranks, as in a cell that runs on this rank only. Main thread."""
        return self._by([self.rank])

    def _by_everyone(self) -> AbstractContextManager[None]:
        """Allow what needs all ranks, even if only some of them ran the last cell. Main thread."""
        return self._by(None)

    @contextmanager
    def _by(self, ranks: list[int] | None) -> Iterator[None]:
        before = self.comm.cell_ranks if self.comm is not None else None
        run, self.record.run = self.record.run, None  # threads of cells go on
        if self.comm is not None:
            self.comm.cell_ranks = ranks
        self._look_alert()
        try:
            yield
        finally:
            self.record.run = run
            if self.comm is not None:
                self.comm.cell_ranks = before
            self._look_alert()

    @property
    def stale(self) -> bool:
        """Whether groups must be re-formed before the next cell: see `look_back`."""
        lives = self._broken is None and dist.is_initialized() and not self.replaced
        return not lives or self.record.broken or (self.record.unseen and self._lacks_connections())

    def _lacks_connections(self) -> bool:
        """Return whether gloo has closed some: each member of a group has one to each other, also a destroyed one."""
        return self.gloo.connections() < sum(len(group.members) - 1 for group in self._made if group.is_gloos)

    def look_back(self, *, failed: bool, alone: bool) -> tuple[bool, list[str]]:
        """Look whether the groups are as they were before the request.

        They are if their generation has not ended, if what torch keeps of them is as it was before, and if no call of
        them has failed in its transport. Otherwise, what torch keeps is put right here, and they are formed again.

        Args:
            failed: the request has ended with an error.
            alone: no thread of a cell goes on, which may be inside torch's code.

        Returns:
            Whether they must be formed again, and what a user should know of that.
        """
        left = unfinished.finish() if failed or alone else []
        stale = self.stale or bool(left)
        notes = [_REPLACED] if stale and self.replaced else []
        if left and not failed:  # else its error is shown
            notes += [f"the cell ended inside {what}; nbcomm has closed it." for what in left]
        if failed and not stale and not self.plain:  # a module may be inside its forward or backward, or the GPU busy
            self.record.await_device(_SETTLES)
            stale = ddp_fsdp.interrupted() or bool(self.record.undone())
        return stale, notes

    # ── a process that a cell forks ─────────────────────────────────────────────────────────────────

    def _forked(self) -> None:
        """Detach the child of a fork: it has this rank's groups, connections and store, but it is no rank.

        Its messages would mix with the rank's. So calls of the groups that it has inherited are refused; groups that it
        makes for itself are torch's own. Locks may have been taken by threads that no longer exist.
        """
        self._broken = errors.CollectiveError(
            f"This process was forked from rank {self.rank} and is not a rank itself, so no other rank takes part in "
            "its "
            f"calls. Call it on rank {self.rank}; or, for a process group of its own, start the process with the "
            'method "spawn".'
        )
        if self.comm is not None:
            self.comm.leave_behind(str(self._broken))
        self.alert = True
        self.board = None
        self._patches.close()
        if self.place is not None and not self.plain:
            c10d.watch_new_groups(self._new_group_of_child)

    def _new_group_of_child(self, make: Callable[[], Any], *_: Any) -> Any:
        if isinstance(dist.group.WORLD, RankGroup):
            self.object("new_group", [], None)
        return make()


def _count(membership: dict[int, Groups]) -> int:
    return max([process_groups.group_count(), *(groups.count for groups in membership.values())])


def _turn(name: str) -> tuple[bool, int, str]:
    """Return the key by which all ranks order their groups: the order of their making, where torch numbers them."""
    return not name.isdigit(), int(name) if name.isdigit() else 0, name


def _alive() -> set[Any]:
    return {group for group, *_ in process_groups.known_groups()}
