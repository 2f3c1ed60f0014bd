"""Where a notebook's requests are sent to its ranks, and where their answers arrive and are waited for.

All requests go one way: a message with an id to some ranks, one `Done` back from each, output in between. The calling
thread waits, so that a user sees the output live, and can interrupt.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec import structs

from ... import rank_spec as rank_specs
from ...errors import Interrupted
from ...faults import failure
from ...protocol import Done, Failure, Interrupt
from ...protocol.payload import release
from ...protocol.requests import LONGEST_IMPORT
from ...sentences import wrapped
from ..cluster.pending import PendingRequest
from ..output.failures import dead, death_of, with_deaths_together
from .input_prompts import InputPrompts
from .interrupts import InterruptCounter

if TYPE_CHECKING:
    from ...launch.link import Link
    from ...protocol import MainLoopRequest as Order
    from ..cluster.rank_table import RankTable

TICK = 0.05
"""Seconds between two looks at a running request: to render its output, and to check whether ■ was pressed."""

_INTERRUPT_PATIENCE = 5.0
"""Seconds that an interrupted cell has to end before the notebook stops waiting for it."""

_IMPORT_PATIENCE = LONGEST_IMPORT + _INTERRUPT_PATIENCE
"""The same where a rank imports a library, for whose end the interrupt waits."""

_SILENCE = 1.5
"""Seconds after which a silent rank is assumed to be in C code that lets none of its threads run."""

_IDS_APART = 1000
"""The distance between the first id of a notebook's requests and those of the notebook before it."""


class Dispatcher:
    """The requests of one world.

    Args:
        link: to send by.
        rank_table: knows which ranks are silent, and for how long.
        addressed: adds this world's name to the remedies in a text.
    """

    def __init__(self, link: Link, rank_table: RankTable, addressed: Callable[[str], str] = lambda text: text) -> None:
        self._addressed = addressed
        self.input_requests = InputPrompts(link, rank_table)
        """The ranks' requests for input."""
        self._link = link
        self._rank_table = rank_table
        self._ids = itertools.count(1)
        self._first = 1  # the first id of this notebook's
        self._open: dict[int, PendingRequest] = {}
        self._left = ""

    # ── asking ──────────────────────────────────────────────────────────────────────────────────────

    def prepare(self, ranks: Iterable[int]) -> PendingRequest:
        """Make a request that nobody waits for until it is asked; until then its maker may drop it."""
        return PendingRequest(next(self._ids), ranks)

    def ask(self, request: PendingRequest, message: Order, buffers: Sequence[Any] = ()) -> None:
        """Register a request, and send its message, which gets its id; if that fails, it is as if nobody had asked."""
        self._ask(request, dict.fromkeys(request.ranks, structs.replace(message, id=request.id)), buffers)

    def ask_each(self, messages: Mapping[int, Order]) -> PendingRequest:
        """Ask some ranks, each with its own message, as `ask` does; return the request."""
        request = self.prepare(messages)
        self._ask(request, {rank: structs.replace(message, id=request.id) for rank, message in messages.items()})
        return request

    def _ask(self, request: PendingRequest, messages: Mapping[int, Order], buffers: Sequence[Any] = ()) -> None:
        """Register a request and send it: the only place that does either, so that there is never one without both."""
        try:
            self._open[request.id] = request  # first: it may be answered at once
            self.lose_dead(request)
            if self._left:
                self.close(self._left)
            self._link.send_each({rank: messages[rank] for rank in request.waiting_for()}, buffers)
            request.note_sent(self._rank_table.question)
        except BaseException:
            self._open.pop(request.id, None)
            with suppress(Exception):  # a rank that has received it all the same runs it in vain: see `Reconciler`
                self._link.send(messages, Interrupt(request.id))
            raise

    def take_over(self, ranks: Iterable[int], identity: int) -> PendingRequest:
        """Wait for a request that another notebook has sent.

        Ranks that have died may have answered before: see `lose_dead`.
        """
        request = self._open[identity] = PendingRequest(identity, ranks)
        return request

    def take_up(self, last: int) -> None:
        """Continue the numbers of the earlier notebook's requests, about which the ranks may still send messages."""
        self._first = max(last, 0) + _IDS_APART
        self._ids = itertools.count(self._first)

    def interrupt(self) -> None:
        """Pass an interrupt on to all ranks that have not answered; it is harmless if nothing runs."""
        for request in self.open():
            self._interrupt(request)

    def _interrupt(self, request: PendingRequest) -> None:
        request.ending = self._rank_table.question, Interrupt(request.id)
        self._link.send(request.waiting_for(), request.ending[1])

    # ── answers ─────────────────────────────────────────────────────────────────────────────────────

    def open(self) -> list[PendingRequest]:
        """Return the requests that lack an answer."""
        return list(self._open.values())

    def busy(self) -> set[int]:
        """Return the ranks that have not answered something."""
        return {rank for request in self.open() for rank in request.waiting_for()}

    def is_stray(self, run: int | None) -> bool:
        """Return whether a rank that runs this does so in vain: nobody awaits this request of the notebook's."""
        return run is not None and run >= self._first and run not in self._open

    def hear(self, rank: int, done: Done, frames: Sequence[Any] = ()) -> None:
        """Take a rank's answer; on the link's thread."""
        request = self._open.get(done.id)
        if request is not None and request.answer(rank, done, frames):
            self._open.pop(request.id, None)
            self._link.acknowledged = max(self._link.acknowledged, request.id)
        if request is None and done.blob is not None:
            release(done.blob)  # nobody waits for it any more

    def miss(self, rank: int, identity: int, what: str = "its answer") -> None:
        """Fail a rank's part of a request: the rank reports that it, or its answer, was lost or not understood."""
        error = RuntimeError(f"{what} was lost in transit")
        self.hear(rank, Done(identity, failure=failure(rank, error), broken=True))

    def lose(self, rank: int, cause: str) -> None:
        """Fail all requests to a rank that has died."""
        for request in self.open():
            if request.awaits(rank):
                self.hear(rank, lost(request.id, cause, rank))

    def lose_dead(self, request: PendingRequest) -> None:
        """Fail a request to ranks that died before it was registered: `lose` did not find it."""
        for rank in self._rank_table.dead_among(request.waiting_for()):
            self.hear(rank, lost(request.id, self._rank_table.dead[rank], rank))

    def failures(self, request: PendingRequest) -> dict[int, Failure]:
        """Return the failures among the answers to a request, by rank; ranks that died alike have one in common."""
        return with_deaths_together(request.failures(), self._rank_table.dead, self._rank_table.without_heal)

    def close(self, cause: str) -> None:
        """Fail all requests, also those that other threads are about to make: the world is left."""
        self._left = cause
        for request in self.open():
            for rank in request.waiting_for():
                request.answer(rank, lost(request.id, cause))
            self._open.pop(request.id, None)

    # ── waiting ─────────────────────────────────────────────────────────────────────────────────────

    def wait(
        self, request: PendingRequest, interrupts: InterruptCounter, tick: Callable[[], None] = lambda: None
    ) -> None:
        """Wait for all answers. An interrupt is passed on to the ranks, and waited for.

        Raises:
            Interrupted: ■ was pressed, but the request ended well, or not at all.
        """
        while not request.wait(TICK):
            tick()
            if interrupts.pressed:
                self._wait_interrupted(request, tick, interrupts)
                break
        if interrupts.pressed and not request.failures():
            raise Interrupted  # it ended well at the last moment: the notebook must still stop here

    def abandon(self, request: PendingRequest) -> None:
        """End a request that nobody waits for any more, since something has failed here, or the next would wait."""
        if request.id not in self._open:
            return
        self._interrupt(request)
        until = time.monotonic() + _INTERRUPT_PATIENCE
        while not request.wait(TICK) and time.monotonic() < until:
            pass

    def _wait_interrupted(
        self, request: PendingRequest, tick: Callable[[], None], interrupts: InterruptCounter
    ) -> None:
        request.interrupted = True
        self._interrupt(request)
        began = time.monotonic()
        while not request.wait(TICK):
            tick()
            if interrupts.again():
                self._interrupt(request)
            stuck, waited = request.waiting_for(), time.monotonic() - began
            deaf = self._rank_table.silent_for(stuck, _SILENCE) if waited > _SILENCE else []
            if not stuck or (waited < _IMPORT_PATIENCE and self._rank_table.importing(stuck, request.id)):
                continue  # it has just ended, or the cell says what its end waits for: see `HangWatch`
            if waited > _INTERRUPT_PATIENCE or (deaf and deaf == stuck):
                stopped = self._rank_table.stopped(stuck) if deaf == stuck else []
                print(wrapped(self._addressed(_deaf(stuck, c_code=deaf == stuck, stopped=stopped == stuck))))
                raise Interrupted


def _deaf(ranks: list[int], *, c_code: bool, stopped: bool) -> str:
    who, where = rank_specs.capital(rank_specs.named(ranks)), rank_specs.fold(ranks)
    one = len(ranks) == 1
    why = "C code there holds the GIL" if c_code else f"{'its' if one else 'their'} code ignored the interrupt"
    if stopped:
        return (
            f"{who} {'does' if one else 'do'} not react to the interrupt: a signal has stopped the process. SIGCONT "
            f"lets it go on (kill -CONT). Type %distributed heal {where} to put a new one in its place (the variables "
            "there are lost), or %distributed restart."
        )
    if one:
        return (
            f"{who} does not react to the interrupt: {why}. It keeps running in the background, and cells cannot run "
            f"on it until it ends. Type %distributed heal {where} to put a new process in its place (its variables are "
            "lost), or %distributed restart."
        )
    return (
        f"{who} do not react to the interrupt: {why}. They keep running in the background, and cells cannot run on "
        f"them until they end. Type %distributed heal {where} to put new processes in their places (their variables "
        "are lost), or %distributed restart."
    )


def lost(identity: int, cause: str, rank: int | None = None) -> Done:
    """Return a replacement for the answer of a rank that will never answer, or of the whole world."""
    if rank is None:
        return Done(identity, failure=dead(f"The world {cause}. Type %distributed restart to start a new world."))
    return Done(identity, failure=death_of([rank], {rank: cause}))
