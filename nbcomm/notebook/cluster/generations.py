"""The lives of the world's process groups: formed at the start, ended by an abort, re-formed after it.

This is the fence: a cell that left a collective unfinished, for whatever reason, cannot affect the next cell, because
that cell uses groups that did not exist before. Variables, and objects that hold a group, stay.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from msgspec import structs

from ... import rank_spec as rank_specs
from ...errors import Interrupted, StartError, StateError
from ...protocol import (
    Abort,
    CollectiveState,
    Done,
    FormGroups,
    Interrupt,
    RankPlacement,
    StatusReply,
    rank_lists,
)
from .pending import UNSENT, PendingRequest
from .rank_table import RankTable

if TYPE_CHECKING:
    from ...launch.link import Link
    from ...launch.nodes import Nodes

GROUP_TIMEOUT = 1800.0
"""Seconds that a collective waits for its ranks; torch's own default for gloo."""

_TIMEOUT = 20.0
"""Seconds that re-forming the groups may take; it takes hundredths, unless a rank has just died."""

_END = 2.0
"""Seconds that the others have to notice that one of them has failed."""

_SILENCE = 1.5
"""Seconds after which a rank that sends nothing at all counts as unable to form groups."""

_TRIES = 3
"""How many times the groups are formed once more, if the daemon that serves their store ends meanwhile."""

_TICK = 0.1


class Generations:
    """The groups of one world, formed one generation after the other.

    Args:
        rank_table: the places and states of the ranks.
        nodes: serve the stores.
        link: to send by.
        ask: sends each rank its request, and returns what collects their answers.
    """

    def __init__(
        self,
        rank_table: RankTable,
        nodes: Nodes,
        link: Link,
        ask: Callable[[Mapping[int, FormGroups]], PendingRequest],
    ) -> None:
        self.number = 0
        self.port = 0
        self.stale = False
        """Whether the groups must be re-formed before the next cell."""
        self.newcomers: set[int] = set()
        """Ranks whose process is new: they have not joined yet."""
        self.plain = ""
        """Why the groups are torch's own; empty if they are nbcomm's."""
        self.over = False
        """The world is left: no groups are formed any more."""
        self._aborted: tuple[int, int] | None = None
        self._aborted_at = 0.0
        self._forming = False
        self._lost = False
        """The store was lost since the last cell began: the making of a group may have failed on some ranks only."""
        self._storing = threading.Lock()  # the link's thread looks for the store
        self._rank_table = rank_table
        self._nodes = nodes
        self._link = link
        self._ask = ask

    def take_up(self, snapshots: Iterable[StatusReply], port: int, plain: str = "") -> None:
        """Go on where another notebook has stopped."""
        self.plain = plain
        snapshots = list(snapshots)
        lives = {snapshot.generation for snapshot in snapshots}
        self.number, self.port = max(lives, default=0), port
        self.newcomers = {snapshot.rank for snapshot in snapshots if not snapshot.generation}
        self.stale = len(lives) > 1 or bool(self._rank_table.dead)  # it was forming them when it ended
        # Or a cell had just failed, and its answer told another notebook what it left unfinished.
        self.stale |= not plain and any(snapshot.state in {"failed", "interrupted"} for snapshot in snapshots)
        self.look_for_store()  # the daemon that served it may have ended meanwhile

    def form(self, wait: Callable[[PendingRequest], None]) -> None:
        """Let every living rank form the next generation; again, if the daemon that serves their store ends meanwhile.

        Args:
            wait: waits until all ranks have answered, or the store is `lost`. If a rank has failed, or not answered, it
                ends the request there, and raises a `StateError` or a `StartError`.

        Raises:
            StateError: the node does not serve their store.
        """
        for last in [False] * _TRIES + [True]:
            with self._ordered() as request:
                try:
                    wait(request)
                except (StateError, StartError):
                    self._nodes.wait_for_ends(_END)
                    if last or not self.lost or self.over or not self._rank_table.living:
                        raise
                else:
                    break
        self.stale = False
        self.newcomers.clear()
        self._rank_table.note_formed(request.ranks)
        self.look_for_store()

    @contextmanager
    def _ordered(self) -> Iterator[PendingRequest]:
        with self._storing:
            self._forming = True
            self.number += 1
        try:
            yield self.order()
        finally:
            self._forming = False

    @property
    def lost(self) -> bool:
        """Whether the store of the present generation is lost, with the daemon that served it."""
        return self._nodes.rendezvous.generation != self.number

    def order(self) -> PendingRequest:
        """Tell every living rank to form the present generation; return the request, unanswered."""
        rank_table = self._rank_table
        self._nodes.rendezvous.serve(self.number)
        ahead = self._nodes.compare_clocks()
        living = [place for place in rank_table.places if place.rank not in rank_table.dead]
        if not living:
            remedies = dict.fromkeys(rank_table.without_heal(rank) for rank in rank_table.ranks)
            remedy = " ".join(filter(None, remedies)) or "Type %distributed heal, or %distributed restart."
            raise StateError(f"All ranks have died. {remedy}")
        form = self._form(living[0])
        return self._ask(
            {place.rank: structs.replace(form, place=place, ahead=ahead.get(place.rank, 0.0)) for place in living}
        )

    def _form(self, place: RankPlacement) -> FormGroups:
        """Return the order for one rank; the others' differ in the place only."""
        return FormGroups(
            id=UNSENT,
            place=place,
            generation=self.number,
            master_addr=self._rank_table.places[0].address,
            master_port=self.port,
            timeout=GROUP_TIMEOUT,
            absent=rank_lists.written(sorted(self._rank_table.dead)),
            newcomers=rank_lists.written(sorted(self.newcomers)),
            plain=self.plain,
            nodes=self._nodes.numbers(self._rank_table.ranks),
            store=self._nodes.rendezvous.store,
            listeners=self._nodes.rendezvous.listeners(),
        )

    def look_for_store(self) -> None:
        """If a node has another daemon, let it serve what the last one did, an empty store, too; any thread may call.

        Groups that are formed miss nothing there, and ranks connect to it before they form another one. Where they form
        groups now, some may have met in the last one: then all begin again, see `form`. NCCL's groups exchange ids in
        the store at their first call, one rank for all, so they are formed again.
        """
        with self._storing:
            if self.number > 0 and not self._forming:
                self._lost |= self.lost
                nccl = self.lost and any("nccl" in place.backend for place in self._rank_table.places)
                if nccl or not self._nodes.rendezvous.serve_again(self.number):
                    self.stale = True

    def abort(self, request: PendingRequest, error: str, text: str, culprits: Iterable[int] = ()) -> None:
        """End the current generation: every rank that has not answered the request fails with this error.

        ``culprits`` are the ranks because of whose failure or death it ends, if that is the reason.
        """
        self.stale = request.aborted = True
        if (self.number, request.id) == self._aborted:  # all ranks get the first reason
            return
        request.blame(culprits)
        request.ending = self._rank_table.question, Abort(request.id, self.number, error, text)
        # Behind what may fail, which is then tried again; an order that is lost is repeated: see `Reconciler`.
        self._aborted, self._aborted_at = (self.number, request.id), time.monotonic()
        self._link.send(request.waiting_for(), request.ending[1])

    def ending_for(self, request: PendingRequest) -> float:
        """Return the seconds since a request was aborted; 0 if it was not."""
        return time.monotonic() - self._aborted_at if self._aborted == (self.number, request.id) else 0.0

    def look_back(self, answers: Mapping[int, Done]) -> None:
        """Check after a cell whether it left anything that could affect a later one."""
        for rank, done in answers.items():
            self._rank_table.note_doing(rank, self.number, done)
        failed = any(done.failure for done in answers.values())
        # If all ranks succeeded, what one rank has issued ahead may be meant for the next cell.
        left = failed and (self._lost or left_over(self._rank_table.doings(self.number)))
        if left or any(done.broken for done in answers.values()):
            self.stale = True  # no `|=`, which reads it first: a death may set it meanwhile, on the link's thread

    @property
    def due(self) -> bool:
        """Whether the groups are re-formed before the next cell."""
        return not self.over and (self.stale or bool(self.newcomers))

    def renew(self, given_up: Callable[[], bool] = lambda: False) -> None:
        """Re-form all groups on every living rank, if that is due. The caller must hold interrupts back meanwhile.

        Args:
            given_up: whether the caller no longer waits.

        Raises:
            Interrupted: it was given up; the groups stay stale.
            StateError: a rank could not form them; they stay stale.
        """
        self._lost = False
        if not (self.due or self._nodes.rendezvous.is_whole(self.number)):
            self.look_for_store()
        if self.due and self._rank_table.living:
            self.stale = True
            self.form(partial(self._await, given_up=given_up))

    def _await(self, request: PendingRequest, given_up: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _TIMEOUT
        while not (request.wait(_TICK) or request.failures() or self.over or self.lost or time.monotonic() > deadline):
            if given_up():
                self.end(request, "An interrupt ended the forming of the process groups.")
                raise Interrupted("the process groups were not re-formed; the next cell tries again.")
        failures = request.failures()
        if failures or request.waiting_for():
            # A rank that waits for the failed one must not wait for ever.
            waiting = request.waiting_for()
            # The ranks that answer status requests only wait for the others.
            late = sorted(failures) or self._rank_table.silent_for(waiting, _SILENCE) or waiting
            self.end(request, f"{rank_specs.capital(rank_specs.named(late))} could not re-form the process groups.")
            silence = (
                "the daemon that serves their store has ended" if self.lost else f"no answer within {_TIMEOUT:g} s"
            )
            reasons = [failures[rank].message.rstrip(".") if rank in failures else silence for rank in late]
            alike = rank_specs.together(late, reasons)
            said = "; ".join(f"{rank_specs.named(who)}: {reason}" for reason, who in alike.items())
            raise StateError(
                f"The process groups could not be re-formed: {said}. The ranks keep their variables; "
                "the next cell tries again, and %distributed restart starts a new world."
            )

    def end(self, request: PendingRequest, why: str, error: str = "HangError") -> None:
        """End a forming, and give the ranks time to notice, or they would be busy when the next cell comes."""
        self.abort(request, error, why)
        deadline = time.monotonic() + _END
        while not (request.wait(_TICK) or self.over) and time.monotonic() < deadline:
            pass
        # A rank that has not begun yet does not know what was ended, and would wait for the others for ever.
        if waiting := request.waiting_for():
            request.ending = self._rank_table.question, Interrupt(request.id)
            self._link.send(waiting, request.ending[1])


def left_over(doings: Mapping[int, CollectiveState]) -> bool:
    """Return whether ranks have issued something that others of the group have not.

    Args:
        doings: how far each rank is, all in one generation.
    """
    issued: dict[str, set[int]] = {}
    open_: Counter[tuple[str, int, int]] = Counter()
    for rank, doing in doings.items():
        for group, count in doing.issued.items():
            issued.setdefault(group, set()).add(count)
        for sent in doing.sent:
            if sent.peer is not None:
                open_[sent.group, sent.peer, sent.tag] += sent.number
        for received in doing.received:
            open_[received.group, rank, received.tag] -= received.number
    return any(len(counts) > 1 for counts in issued.values()) or any(open_.values())
