"""This rank's membership in the world: its groups are formed, aborted, and formed anew.

One *generation* is one life of the groups. It ends when a wait is hopeless, at an interrupt in a collective, or
behind a cell that left something half done; then every rank forms all its groups again, in the order in which
they were made, and whatever the last generation left in the air can meet nothing of the next.

The main thread forms; any thread may abort. Where torch does not let its groups be handed out by us (see
`torch_internals.check`) they are torch's own: destroyed and initialised anew, and handles made before are lost.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .. import errors
from ..messages import Form, Mismatch, Place
from ..ranks import by_rank, named
from . import guard, lending, selftest, spoken
from .board import Board, entry, in_child, words_of
from .census import Groups, hold, without
from .comm import Communicator
from .group import RankGroup
from .record import Record
from .store import StoreServer, UnixStore
from .surroundings import seed_differently, torchrun_environment
from .torch_internals import ddp_fsdp, process_groups, wait_hooks
from .torch_internals.c10d import hash_of
from .torch_internals.check import self_check
from .torch_internals.gloo_sockets import GlooDevice

_WORLD = "0"
"""Torch's name of the first group that is made; who has destroyed it makes it again."""
_LOST_PEER = re.compile(
    r"closed by peer|[Cc]onnection (reset|refused|closed|was closed)|[Bb]roken pipe|[Ss]ocket (closed|is not)|"
    r"is gone|is closed"
)
"""What gloo, NCCL and the store say when the other end has ended."""

_LOOK = 0.002
_SETTLE = 0.1
"""Seconds in which the ranks have told each other of a call that they have begun."""

_ANEW = "The process groups have been formed anew since this was begun; begin it again."

_PATIENCE = 2.0
"""Seconds to wait for the notebook to say why a connection was lost: it sees more than one rank does."""


class World:
    """The groups of this process, and what is known to be wrong with them.

    Args:
        tell: sends a message to the notebook; None where nobody listens.
        scope: the namespace of the cells.
    """

    def __init__(
        self,
        tell: Callable[[Mismatch], object] | None = None,
        scope: Callable[[], dict[str, Any] | None] = lambda: None,
    ) -> None:
        self.place: Place | None = None
        self.comm: Communicator | None = None
        self.generation = 0
        self.record = Record(scope, self.explain)
        self.board: Board | None = None
        self.rank = 0
        self.alert = False
        self.plain = ""
        """Why the groups are torch's own; empty if they are ours. The notebook decides, for all ranks alike."""
        self._tell = tell
        self._run: int | None = None
        self._server: StoreServer | None = None
        self._store: UnixStore | None = None
        self._groups: list[RankGroup] = []
        self._absent: tuple[int, ...] = ()
        self._environment: dict[str, str] = {}
        self._inits = 0
        self._broken: BaseException | None = None
        self._patches = ExitStack()
        """Puts back what torch has in places where it has something of ours."""
        self.told = 0.0
        """When the main thread's present request was given the reason why its groups are broken; 0 if it was not."""
        self._lock = threading.Lock()  # an abort must not hit the generation after the one that it means
        in_child(self._forked)

    # ── forming ─────────────────────────────────────────────────────────────────────────────────────

    def form(self, order: Form) -> Communicator:
        """Take a place and join the process group, or form all groups anew; every living rank must be told to.

        Args:
            order: the place, the generation, and the store's socket.

        Returns:
            The communicator over the whole world; always the same one.

        Raises:
            SelfTestError: torch does not do with our groups what it should; form them with ``order.plain``.
        """
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

    def _open(self, order: Form) -> None:
        """What a first generation needs: the store, gloo's address, the board, and our groups in torch."""
        place, path = order.place, Path(order.store)
        self._absent = tuple(order.absent)
        self._inits = 0
        self.place, self.rank, self.generation = place, place.rank, order.generation
        self.plain = order.plain
        if not self.plain and (why := self_check()):
            raise errors.SelfTestError(why)
        self.gloo = GlooDevice(path.parent.name, reserve=not self.plain)
        if order.serves:
            self._server = StoreServer(path)
        self._store = UnixStore(path, order.timeout)
        if order.board:
            self.board = Board(Path(order.board), place.rank)
        self._patches.callback(lending.lend(lambda: not self.replaced, "This cell"))
        if not self.plain:
            noting = partial(self.gloo.noting, elsewhere=True)
            self._patches.callback(process_groups.hand_out(self._make_group, self._is_ours, noting, place.backend))
            self._patches.callback(process_groups.meet_in(self._store_of_a_cell))
            self._patches.callback(wait_hooks.watch_waits(self.record.wait))
            self._patches.callback(wait_hooks.watch_new_groups(self._watched_new_group))
            self._patches.callback(ddp_fsdp.follow_modules())

    def _withdraw(self) -> None:
        """Leave what a first attempt to form the groups has left, if there was one."""
        with self._lock:
            self._free()
            self.record.await_ends()
            if dist.is_initialized():
                lending.destroy_world()
            process_groups.set_group_count(0)  # an attempt cut short has named a group; the other ranks' may not have
            self._patches.close()
            self._groups.clear()
            self.record.forget()
            if self._server is not None:
                self._server.close()
            self._server = self._store = self._broken = None
            self.record.aborted = 0.0

    def _test(self, order: Form) -> None:
        """Believe nothing that torch says of the world before it was compared with what is true."""
        place = order.place
        selftest.compare_world(place.rank, place.world_size)
        if order.absent:  # what needs all ranks cannot be tried
            return
        world = dist.group.WORLD
        with self._by_everyone(), world.tried_out() if isinstance(world, RankGroup) else nullcontext():
            selftest.reduce_world(place.rank, place.world_size, torch.device(place.device))
        self.record.journal.begin()
        if not self.plain:
            selftest.compare_hold(
                handed_out=isinstance(world, RankGroup),
                connected=place.world_size == 1 or "gloo" not in place.backend or self.gloo.has_connections(),
            )

    def _join(self, order: Form) -> None:
        place = order.place
        device = torch.device(place.device)
        with self.gloo.noting():
            dist.init_process_group(
                place.backend,
                store=self._store,
                rank=place.rank,
                world_size=place.world_size,
                timeout=timedelta(seconds=order.timeout),
                # Binding lets NCCL connect at once, and errors name the GPU. gloo takes no device.
                device_id=device if device.type == "cuda" and "nccl" in place.backend else None,
            )

    def _store_of_a_cell(self) -> Any:
        """Where the ranks meet for a cell's own ``init_process_group``; None if it wants to meet others than them."""
        names = ("RANK", "WORLD_SIZE")  # tutorials set MASTER_ADDR and MASTER_PORT to anything
        if self._store is None or any(os.environ.get(name) != self._environment[name] for name in names):
            return None
        self._inits += 1
        return process_groups.part_of(self._store, f"init:{self._inits}")

    def _is_ours(self, of: tuple[int, int] | None) -> bool:
        """Whether a group is part of this world: another world, with its groups, is none of ours."""
        if of is None:
            return isinstance(dist.group.WORLD, RankGroup)
        return self.place is not None and of == (self.place.rank, self.place.world_size)

    def _make_group(self, *args: Any) -> RankGroup:
        group = RankGroup(self, *args)
        self._groups.append(group)
        group.form(self._absent)
        return group

    def _form_again(self, order: Form) -> None:
        assert self.comm is not None  # noqa: S101 - for mypy: the first generation has made it
        with self._lock:
            if self._broken is None:  # for whoever is still under way
                self._broken = errors.CollectiveError(_ANEW)
            self._free()  # what is still under way must end before its group is let go
            self.record.await_ends()
            self.comm.lanes.end(_ANEW, _PATIENCE)
            self.generation = order.generation
            self._broken = None
            self.record.aborted = 0.0
        self._absent = tuple(order.absent)
        self._inits = 0
        store = self._store
        assert store is not None  # noqa: S101 - for mypy: a first generation has one
        if self._server is not None:
            self._server.close()
        self._server = StoreServer(Path(order.store)) if order.serves else None
        store.retarget(Path(order.store))
        self.record.forget()
        if self.replaced or (self.plain and dist.is_initialized()):
            lending.destroy_world()
        if self.plain:
            self._join(order)
        else:
            census = self._hold_census(order)
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
                group.form(self._absent, without(census, group.called, group.members) if group.called != _WORLD else ())
            process_groups.set_group_count(_count(census))
        self._meet_board(order)
        self._test(order)
        self._look_alert()

    def _hold_census(self, order: Form) -> dict[int, Groups]:
        assert self._store is not None  # noqa: S101 - for mypy
        out = {*order.newcomers, *order.absent}
        return hold(self._store, self.rank, [rank for rank in range(order.place.world_size) if rank not in out])

    def _join_groups_of_others(self, order: Form) -> None:
        """Take the place of a dead rank in the groups that it was in."""
        census = self._hold_census(order)
        groups: dict[str, tuple[list[int], str]] = {}
        for other in census.values():  # each knows only those that it is in; others may have the same name
            groups.update({name: made for name, made in other.named.items() if self.rank in made[0]})
        process_groups.set_group_count(_count(census))
        known = {name for _, name, *_ in process_groups.known_groups()}
        for name in sorted(groups.keys() - known, key=_turn):
            members, backend = groups[name]
            if not without(census, name, members):
                process_groups.join_group(name, members, backend, timedelta(seconds=order.timeout))

    def _meet_board(self, order: Form) -> None:
        if self.board is not None:
            present = [rank for rank in range(order.place.world_size) if rank not in order.absent]
            self.board.meet(present)
            for group in self._groups:
                group.look_at_board()

    def _become(self, place: Place, order: Form) -> None:
        self._environment = torchrun_environment(place, order.master_addr, order.master_port)
        os.environ.update(self._environment)
        # gloo listens where the hostname resolves, often on every interface: name the loopback one.
        os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
        if place.nodes == 1:  # NCCL would take any interface but loopback
            os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        os.environ["OMP_NUM_THREADS"] = str(place.threads)
        torch.set_num_threads(place.threads)
        if place.device.startswith("cuda"):
            torch.cuda.set_device(torch.device(place.device))
        seed_differently()

    # ── a cell begins and ends ──────────────────────────────────────────────────────────────────────

    def begin(self, run: int, ranks: list[int] | None) -> None:
        """A request begins that runs on these ranks; None for all. Main thread."""
        self._run, self.told = run, 0.0
        self.record.settle()
        if self.comm is not None:
            everyone = ranks is None or len(ranks) == self.comm.world_size
            self.comm.cell_ranks = None if everyone else ranks
        self._look_alert()

    def end(self) -> None:
        """It has ended."""
        self._run = None

    def by_itself(self) -> AbstractContextManager[None]:
        """Refuse what needs other ranks, as in a cell that runs on this rank only. Main thread."""
        return self._by([self.rank])

    def _by_everyone(self) -> AbstractContextManager[None]:
        """Allow what needs all ranks, whichever of them ran the last cell. Main thread."""
        return self._by(None)

    @contextmanager
    def _by(self, ranks: list[int] | None) -> Iterator[None]:
        before = self.comm.cell_ranks if self.comm is not None else None
        if self.comm is not None:
            self.comm.cell_ranks = ranks
        self._look_alert()
        try:
            yield
        finally:
            if self.comm is not None:
                self.comm.cell_ranks = before
            self._look_alert()

    @property
    def broken(self) -> BaseException | None:
        """Why this generation has ended; None while it lives."""
        return self._broken

    @property
    def stale(self) -> bool:
        """Whether groups must be formed anew before the next cell: they were aborted, or a cell has destroyed them."""
        return self._broken is not None or not dist.is_initialized() or self.replaced

    @property
    def replaced(self) -> bool:
        """Whether a cell has put a world of its own in the place of this one."""
        if self.place is None or not dist.is_initialized():
            return False
        if self.plain:
            return (dist.get_rank(), dist.get_world_size()) != (self.place.rank, self.place.world_size)
        return not isinstance(dist.group.WORLD, RankGroup)

    # ── ending a generation: any thread ─────────────────────────────────────────────────────────────

    def abort(self, generation: int, error: BaseException) -> None:
        """End a generation: every wait fails, with this error. Nothing if that generation has ended before."""
        with self._lock:
            if generation != self.generation:
                return
            first = self._broken is None
            if first:
                self._broken = error
                self.alert = True
                self.record.aborted = time.monotonic()
            if self._store is not None:
                self._store.abort()
        if first:
            # No call begins any more. What has just begun shall come to rest before connections are shut: a send that
            # fails while gloo answers the other end is forgotten, and nobody could free who waits for it in C++.
            time.sleep(_SETTLE)
        with self._lock:
            if generation == self.generation:
                self._free()

    def free_again(self) -> None:
        """Free whoever began to wait after `abort`; for as long as the request has not ended."""
        with self._lock:
            if self._broken is not None:
                self._free()

    def _free(self) -> None:
        if self._store is not None:
            self._store.abort()
            self.gloo.shut_connections()
        for group in self._groups:
            with suppress(RuntimeError):  # a backend that has been aborted already
                group.abort_device()

    # ── what groups ask: see `group.Hub` ────────────────────────────────────────────────────────────

    def meeting_place(self, life: str) -> Any:
        """Where the members of a group meet: in the world's own store, which can be aborted, whoever made the group."""
        return process_groups.part_of(self._store, life)

    def await_turn(self, group: dist.ProcessGroup) -> None:
        """Let the collectives of a group that go on beside the cell come first; every rank issues them alike."""
        if self.comm is not None:
            self.comm.lanes.drain(group)

    def object(self, name: str, members: list[int], peer: int | None) -> None:
        """Raise what speaks against a call."""
        if threading.get_ident() in self.record.apart:
            raise errors.CollectiveError(
                f"{name} was refused: it was called to answer what somebody asks while typing (a completion, help); "
                "no other rank takes part in that."
            )
        if self._broken is not None:
            raise self._reason(self._broken)
        comm = self.comm
        if comm is None or comm.cell_ranks is None or comm.lanes.inside():  # what an earlier cell began
            return
        if name in ("send", "recv"):
            if peer is not None:
                guard.check_peer("send to" if name == "send" else "recv from", peer, comm.cell_ranks)
        else:
            guard.check_present(name, members, comm.cell_ranks, comm.world_size)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """While the calling thread answers what a person asks while typing: calls are refused to it."""
        ident = threading.get_ident()
        self.record.apart.add(ident)
        self._look_alert()
        try:
            yield
        finally:
            self.record.apart.discard(ident)
            self._look_alert()

    def _look_alert(self) -> None:
        with self._lock:  # who looks last has seen all
            some = self.comm is not None and self.comm.cell_ranks is not None
            self.alert = self._broken is not None or some or bool(self.record.apart)

    def explain(self, error: BaseException) -> BaseException:
        """What to raise in place of an error of torch's: a lost connection has a cause that the notebook knows."""
        if not isinstance(error, RuntimeError) or isinstance(error, errors.NbcommError):
            return error
        if not _LOST_PEER.search(str(error)):
            return error
        if self._broken is None and self._tell is not None:
            with self.record.losing():
                self._await_reason()
        return error if self._broken is None else self._reason(self._broken)

    def _await_reason(self) -> None:
        # No Event: a signal handler that raises within one may leave its lock taken, for ever.
        deadline = time.monotonic() + _PATIENCE
        while self._broken is None and time.monotonic() < deadline:
            time.sleep(_LOOK)

    def mismatch(self, members: list[int], seq: int, said: dict[int, tuple[str, str]]) -> BaseException:
        """Tell the notebook of a difference, and return what to raise.

        Args:
            members: the group's global ranks.
            seq: the place in the group.
            said: of each rank that has come there, what it does and what its cell called, as the board has them.
        """
        world = self.place is not None and len(members) == self.place.world_size
        where = "the world" if world else f"the group of {named(members)}"
        told, first = spoken.in_words(said), min(said)  # whoever tells it, it is the same sentence
        parts = by_rank(sorted(told), [f"called {told[rank]}" for rank in sorted(told)])
        name = spoken.name_of(*said[first]) or spoken.name_of(*said[self.rank])
        text = f"{name} #{seq} of {where} is not the same on all ranks: {parts}. No rank has gone on with it."
        error = errors.MismatchError(text)
        if self._tell is not None:
            self._tell(Mismatch(self._run, self.generation, text))
            self._await_reason()  # so that every rank raises the same sentence
        return self._reason(self._broken) if self._broken is not None else error

    def ended(self) -> bool:
        """Whether this life of the groups is over."""
        return self._broken is not None

    def _reason(self, broken: BaseException) -> BaseException:
        if not self.told and threading.get_ident() == self.record.main:
            self.told = time.monotonic()
        return again(broken)

    def split(self, name: str, members: list[int], backend: str, timeout: timedelta) -> dist.ProcessGroup | None:
        """Make a further group, which only its members do; None on other ranks."""
        if self.alert:
            self.object("split_group", members, None)
        if self.rank not in members:
            return None
        with self.record.meeting(members, counted=False):
            try:
                return process_groups.join_group(name, members, backend, timeout)
            except RuntimeError as error:
                raise self.explain(error) from None

    # ── what torch calls through us ─────────────────────────────────────────────────────────────────

    def _watched_new_group(self, make: Callable[[], Any], ranks: Any, kwargs: dict[str, Any]) -> Any:
        if self.replaced:
            return make()
        everyone = list(range(self.place.world_size)) if self.place else []
        members = everyone if ranks is None else sorted(ranks)
        local = bool(kwargs.get("use_local_synchronization"))
        if self.alert:
            self.object("new_group", members if local else everyone, None)
        if not local:
            self._compare_new_group(members, everyone)
        with self.record.meeting(members, counted=not local):
            try:
                return make()
            except RuntimeError as error:
                raise self.explain(error) from None

    def _compare_new_group(self, members: list[int], everyone: list[int]) -> None:
        if self.board is None:
            return
        board, me, seq = self.board, self.rank, self.record.meetings + 1
        text = guard.new_group(members)
        group = hash_of(f"{self.generation}:new_group")
        seen, where = board.seen(everyone), spoken.here(self.record.scope()).block
        board.put_place(group, seq, where)
        different = board.compare(0, group, seq, entry(hash_of(text), text), seen)
        others = {peer: guard.members_in(board.text(peer, 0, group, seq)) for peer in different}
        if not all(guard.agree((me, members), other) for other in others.items()):
            heard = board.hear(0, group, seq, seen, self.ended)
            heard = {me: (text, words_of(where) or ""), **heard}
            said = {rank: (text.partition("|")[2], where) for rank, (text, where) in heard.items() if text}
            raise self.mismatch(everyone, seq, said)

    # ── a process that a cell forks ─────────────────────────────────────────────────────────────────

    def _forked(self) -> None:
        """In the child of a fork: it has this rank's groups, connections and store, but it is no rank.

        What it moved would come between what the rank moves. So calls of the groups that it has inherited are refused;
        groups that it makes for itself are torch's own. Locks may have been taken by threads that are no more.
        """
        self._broken = errors.CollectiveError(
            f"This process was forked from rank {self.rank} and is no rank itself, so no other rank takes part in its "
            f"calls. Call it on rank {self.rank}; or, for a process group of its own, start the process with the "
            'method "spawn".'
        )
        self.alert = True
        self.board = None
        self._patches.close()
        if self.place is not None and not self.plain:
            wait_hooks.watch_new_groups(self._new_group_of_child)

    def _new_group_of_child(self, make: Callable[[], Any], *_: Any) -> Any:
        if isinstance(dist.group.WORLD, RankGroup):
            self.object("new_group", [], None)
        return make()


def _count(census: dict[int, Groups]) -> int:
    return max([process_groups.group_count(), *(groups.count for groups in census.values())])


def _turn(name: str) -> tuple[bool, int, str]:
    """The order in which all ranks form their groups: that of their making, where torch numbers them."""
    return not name.isdigit(), int(name) if name.isdigit() else 0, name


def _alive() -> set[Any]:
    return {group for group, *_ in process_groups.known_groups()}


def again(error: BaseException) -> BaseException:
    """The same error anew: one that is raised twice would carry the first one's traceback."""
    return type(error)(*error.args)
