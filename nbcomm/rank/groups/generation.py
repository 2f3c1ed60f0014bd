"""One life of the groups: what is wrong with it, and how it ends.

The requests of the groups to the world are answered here, from any thread, and so is what torch calls when it makes a
group. `world.World` begins a life and the next one.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ... import errors
from ...analysis import mismatch
from ...comm import Communicator, subset
from ...protocol import Mismatch, RankPlacement
from ...rank_spec import named
from ...torch_internals import nccl, process_groups
from ...torch_internals.c10d import hash_of
from ...torch_internals.gloo_sockets import GlooSockets
from ..collectives import call_site
from ..collectives.fingerprints import FingerprintBoard, entry, words_of
from ..collectives.flight_recorder import NEW_GROUP, FlightRecorder
from ..collectives.stuck import StuckDetector
from .process_group import RankGroup
from .rendezvous import StoreClient

_LOST_PEER = re.compile(
    r"closed by peer|[Cc]onnection (reset|refused|closed|was closed)|[Bb]roken pipe|[Ss]ocket (closed|is not)|"
    r"is gone|is closed"
)
"""What gloo, NCCL and the store say when the other end has ended."""

_LOOK = 0.002
_SETTLE = 0.1
"""Seconds in which the ranks have written to the board a call that they have begun."""

PATIENCE = 2.0
"""Seconds to wait for the notebook to say why a connection was lost: it sees more than one rank does."""


class Generation:
    """The groups of this process while they live, and the reason for their end.

    Args:
        tell: sends a message to the notebook; None if there is none.
        scope: the namespace of the cells.
    """

    def __init__(
        self,
        tell: Callable[[Mismatch], object] | None = None,
        scope: Callable[[], dict[str, Any] | None] = lambda: None,
    ) -> None:
        self.gloo = GlooSockets()
        self.gpu = torch.device("cuda", 0)
        self.on_gpu = False
        self.aborts = nccl.Aborts()
        self.place: RankPlacement | None = None
        self.comm: Communicator | None = None
        self.generation = 0
        self.record = FlightRecorder(scope, self.explain)
        self.stuck = StuckDetector(self.record)
        self.board: FingerprintBoard | None = None
        self.rank = 0
        self.alert = False
        self.plain = ""
        """Why the groups are torch's own; empty if they are nbcomm's. The notebook decides, for all ranks alike."""
        self._tell = tell
        self._run: int | None = None
        self._store: StoreClient | None = None
        self._groups: list[RankGroup] = []
        self._broken: BaseException | None = None
        self.told = 0.0
        """When the main thread's current request got the reason why its groups are broken; 0 if it did not."""
        self._lock = threading.Lock()  # an abort must not hit the generation after the one that it means

    @property
    def broken(self) -> BaseException | None:
        """The reason why this generation has ended; None while it lives."""
        return self._broken

    @property
    def replaced(self) -> bool:
        """Whether a cell has replaced this world with its own."""
        if self.place is None or not dist.is_initialized():
            return False
        if self.plain:
            return (dist.get_rank(), dist.get_world_size()) != (self.place.rank, self.place.world_size)
        return not isinstance(dist.group.WORLD, RankGroup)

    # ── ending a generation: any thread ─────────────────────────────────────────────────────────────

    def abort(self, generation: int, error: BaseException) -> None:
        """End a generation: every wait fails, with this error. Do nothing if that generation has already ended."""
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
            # No call begins any more. Calls that have just begun get time to settle before connections are shut: a send
            # that fails while gloo answers the other end is forgotten, and a thread that waits for it in C++ could not
            # be freed.
            time.sleep(_SETTLE)
        with self._lock:
            if generation == self.generation:
                self._free()

    def free_again(self) -> None:
        """Free threads that began to wait after `abort`; must be repeated until the request has ended."""
        with self._lock:
            if self._broken is not None:
                self._free()

    def _free(self) -> None:
        if self._store is not None:
            self._store.abort()
            self.gloo.shut_connections()
        self.aborts.begin(backend for group in self._groups for backend in group.on_devices)

    # ── what groups call: see `hub.Hub` ───────────────────────────────────────────────────────────────────

    def meeting_place(self, life: str) -> Any:
        """Return the store where any group's members meet: a part of the world's own store, which can be aborted."""
        return process_groups.part_of(self._store, life)

    def _settle_store(self, *, meets: bool) -> None:
        if self._store is not None:
            self._store.settle(meets=meets)

    def await_turn(self, group: dist.ProcessGroup) -> None:
        """Wait for the asynchronous collectives of a group; every rank issues them in the same order."""
        if self.comm is not None:
            self.comm.lanes.drain(group)

    def object(self, name: str, members: list[int], peer: int | None) -> None:
        """Raise if the call must be refused."""
        if self.record.is_apart(threading.get_ident()):
            raise errors.CollectiveError(
                f"{name} was refused: a completion or a help request called it, and no other rank takes part in those."
            )
        if self._broken is not None:
            raise self._reason(self._broken)
        comm = self.comm
        if comm is None or comm.cell_ranks is None or comm.lanes.earlier():  # an earlier cell began it
            return
        if name in ("send", "recv"):
            if peer is not None:
                subset.check_peer("send to" if name == "send" else "recv from", peer, comm.cell_ranks)
        else:
            subset.check_present(name, members, comm.cell_ranks, comm.world_size)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Refuse calls of the calling thread in the block, in which it answers a request made while a user types."""
        ident = threading.get_ident()
        self.record.apart[ident] = threading.current_thread()
        try:
            self._look_alert()
            yield
        finally:  # if the answer is ended in here, its thread ends, too, and is no longer apart
            self.record.apart.pop(ident, None)
            self._look_alert()

    def _look_alert(self) -> None:
        with self._lock:  # the last one to look has seen everything
            some = self.comm is not None and self.comm.cell_ranks is not None
            apart = any(map(self.record.is_apart, list(self.record.apart)))
            self.alert = self._broken is not None or some or apart

    def explain(self, error: BaseException) -> BaseException:
        """Return what to raise in place of an error of torch's: the notebook knows why a connection was lost."""
        if not isinstance(error, RuntimeError) or isinstance(error, errors.NbcommError):
            return error
        if not _LOST_PEER.search(str(error)):
            return error
        if self._broken is None and self._tell is not None:
            with self.record.losing():
                self._await_reason()
        return error if self._broken is None else self._reason(self._broken)

    def _await_reason(self) -> None:
        # No Event: a signal handler that raises inside one may leave its lock taken, for ever.
        deadline = time.monotonic() + PATIENCE
        while self._broken is None and time.monotonic() < deadline:
            time.sleep(_LOOK)

    def mismatch(self, members: list[int], number: int, said: dict[int, tuple[str, str]]) -> BaseException:
        """Tell the notebook of a difference, and return what to raise.

        Args:
            members: the group's global ranks.
            number: the call's number for people.
            said: for each rank that has arrived there, what it does and what its cell called, from the board.
        """
        world = self.place is not None and len(members) == self.place.world_size
        where = "the world" if world else f"the group of {named(members)}"
        told, first = call_site.in_words(said), min(said)  # the sentence is the same on every rank
        name = call_site.name_of(*said[first]) or call_site.name_of(*said[self.rank])
        text = mismatch.other_call(name, number, where, sorted(told), [told[rank] for rank in sorted(told)])
        error = errors.MismatchError(text)
        if self._tell is not None:
            self._tell(Mismatch(self._run, self.generation, text))
            self._await_reason()  # so that every rank raises the same sentence
        return self._reason(self._broken) if self._broken is not None else error

    def ended(self) -> bool:
        """Return whether this life of the groups has ended."""
        return self._broken is not None

    def _reason(self, broken: BaseException) -> BaseException:
        if not self.told and threading.get_ident() == self.record.main:
            self.told = time.monotonic()
        return errors.again(broken)

    def split(self, name: str, members: list[int], backend: str, timeout: timedelta) -> dist.ProcessGroup | None:
        """Make another group, which only its members do; return None on other ranks."""
        if self.alert:
            self.object("split_group", members, None)
        if self.rank not in members:
            return None
        self._settle_store(meets=True)
        with self.record.creation(members, counted=False):
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
        self._settle_store(meets=True)
        with self.record.creation(members, counted=not local):
            try:
                return make()
            except RuntimeError as error:
                raise self.explain(error) from None

    def _compare_new_group(self, members: list[int], everyone: list[int]) -> None:
        if self.board is None:
            return
        board, me, seq = self.board, self.rank, self.record.creations + 1
        text = subset.new_group(members)
        group = hash_of(f"{self.generation}:new_group")
        seen, where = board.seen(everyone), call_site.here(self.record.scope()).block
        board.put_place(group, seq, where)
        different = board.compare(0, group, seq, entry(hash_of(text), text), seen)
        others = {peer: subset.members_in(board.text(peer, 0, group, seq)) for peer in different}
        if not all(subset.agree((me, members), other) for other in others.items()):
            heard = board.hear(0, group, seq, seen, self.ended)
            heard = {me: (text, words_of(where) or ""), **heard}
            said = {rank: (text.partition("|")[2], where) for rank, (text, where) in heard.items() if text}
            raise self.mismatch(everyone, self.record.journal.turn.next(NEW_GROUP), said)
