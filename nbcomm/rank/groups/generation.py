"""One life of the groups: what is known to be wrong with it, and what ends it.

What the groups ask of the world is answered here, from any thread, and what torch calls when it makes a group. How a
life begins, and the next one behind it, is the matter of `world.World`.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ... import errors
from ...analysis import mismatch
from ...comm import Communicator, subset
from ...protocol import Mismatch, RankPlacement
from ...rank_spec import named
from ...torch_internals import process_groups
from ...torch_internals.c10d import hash_of
from ...torch_internals.gloo_sockets import GlooDevice
from ..collectives import call_site
from ..collectives.fingerprints import FingerprintBoard, entry, words_of
from ..collectives.flight_recorder import FlightRecorder
from ..collectives.stuck import StuckDetector
from .process_group import RankGroup
from .rendezvous import UnixStore

_LOST_PEER = re.compile(
    r"closed by peer|[Cc]onnection (reset|refused|closed|was closed)|[Bb]roken pipe|[Ss]ocket (closed|is not)|"
    r"is gone|is closed"
)
"""What gloo, NCCL and the store say when the other end has ended."""

_LOOK = 0.002
_SETTLE = 0.1
"""Seconds in which the ranks have told each other of a call that they have begun."""

PATIENCE = 2.0
"""Seconds to wait for the notebook to say why a connection was lost: it sees more than one rank does."""


class Generation:
    """The groups of this process while they live, and why they do no more.

    Args:
        tell: sends a message to the notebook; None where nobody listens.
        scope: the namespace of the cells.
    """

    gloo: GlooDevice

    def __init__(
        self,
        tell: Callable[[Mismatch], object] | None = None,
        scope: Callable[[], dict[str, Any] | None] = lambda: None,
    ) -> None:
        self.place: RankPlacement | None = None
        self.comm: Communicator | None = None
        self.generation = 0
        self.record = FlightRecorder(scope, self.explain)
        self.stuck = StuckDetector(self.record)
        self.board: FingerprintBoard | None = None
        self.rank = 0
        self.alert = False
        self.plain = ""
        """Why the groups are torch's own; empty if they are ours. The notebook decides, for all ranks alike."""
        self._tell = tell
        self._run: int | None = None
        self._store: UnixStore | None = None
        self._groups: list[RankGroup] = []
        self._broken: BaseException | None = None
        self.told = 0.0
        """When the main thread's present request was given the reason why its groups are broken; 0 if it was not."""
        self._lock = threading.Lock()  # an abort must not hit the generation after the one that it means

    @property
    def broken(self) -> BaseException | None:
        """Why this generation has ended; None while it lives."""
        return self._broken

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

    # ── what groups ask: see `process_group.Hub` ────────────────────────────────────────────────────────────

    def meeting_place(self, life: str) -> Any:
        """Where the members of a group meet: in the world's own store, which can be aborted, whoever made the group."""
        return process_groups.part_of(self._store, life)

    def await_turn(self, group: dist.ProcessGroup) -> None:
        """Let the collectives of a group that go on beside the cell come first; every rank issues them alike."""
        if self.comm is not None:
            self.comm.lanes.drain(group)

    def object(self, name: str, members: list[int], peer: int | None) -> None:
        """Raise what speaks against a call."""
        if self.record.is_apart(threading.get_ident()):
            raise errors.CollectiveError(
                f"{name} was refused: a completion or a help request called it, and no other rank takes part in those."
            )
        if self._broken is not None:
            raise self._reason(self._broken)
        comm = self.comm
        if comm is None or comm.cell_ranks is None or comm.lanes.earlier():  # what an earlier cell began
            return
        if name in ("send", "recv"):
            if peer is not None:
                subset.check_peer("send to" if name == "send" else "recv from", peer, comm.cell_ranks)
        else:
            subset.check_present(name, members, comm.cell_ranks, comm.world_size)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """While the calling thread answers what a person asks while typing: calls are refused to it."""
        ident = threading.get_ident()
        self.record.apart[ident] = threading.current_thread()
        try:
            self._look_alert()
            yield
        finally:  # where the answer is ended in here, its thread ends, too, and is apart no more
            self.record.apart.pop(ident, None)
            self._look_alert()

    def _look_alert(self) -> None:
        with self._lock:  # who looks last has seen all
            some = self.comm is not None and self.comm.cell_ranks is not None
            apart = any(map(self.record.is_apart, list(self.record.apart)))
            self.alert = self._broken is not None or some or apart

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
        deadline = time.monotonic() + PATIENCE
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
        told, first = call_site.in_words(said), min(said)  # whoever tells it, it is the same sentence
        name = call_site.name_of(*said[first]) or call_site.name_of(*said[self.rank])
        text = mismatch.other_call(name, seq, where, sorted(told), [told[rank] for rank in sorted(told)])
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
            raise self.mismatch(everyone, seq, said)


def again(error: BaseException) -> BaseException:
    """The same error anew: one that is raised twice would carry the first one's traceback."""
    return type(error)(*error.args)
