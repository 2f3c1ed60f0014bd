"""Where a notebook's requests go out to its ranks, and where their answers come in and are waited for.

All requests go one way: a message with an id to some ranks, one `Done` back from each, output in between. The
calling thread waits, so that a person sees the output live, and can interrupt.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ... import rank_spec as rank_specs
from ...errors import Interrupted
from ...faults import failure
from ...protocol import Done, Failure, Interrupt
from ..cluster.pending import PendingRequest
from .input_prompts import InputPrompts
from .interrupts import InterruptCounter

if TYPE_CHECKING:
    from ...protocol import MainLoopRequest as Order
    from ..cluster.link import Link
    from ..cluster.roster import Roster

TICK = 0.05
"""Seconds between two looks at a request that runs: to render its output, to see whether ■ was pressed."""

_INTERRUPT_PATIENCE = 5.0
"""Seconds that an interrupted cell has to end before the notebook gives up waiting for it."""

_SILENCE = 1.5
"""Seconds after which a rank that says nothing at all is taken to be in C code that lets no thread of its run."""

_IDS_APART = 1000
"""How far the ids of a notebook's requests begin from those of the notebook before it."""


class Dispatcher:
    """The requests of one world.

    Args:
        link: to send by.
        roster: who has been silent, and for how long.
        addressed: lets the remedies in a text name this world.
    """

    def __init__(
        self, link: Callable[[], Link], roster: Roster, addressed: Callable[[str], str] = lambda text: text
    ) -> None:
        self._addressed = addressed
        self.seen = 0
        """The last request of which all has been heard; ranks need not keep what they said of it."""
        self.questions = InputPrompts(link, roster)
        """What the ranks ask a person."""
        self._link = link
        self._roster = roster
        self._ids = itertools.count(1)
        self._open: dict[int, PendingRequest] = {}

    # ── asking ──────────────────────────────────────────────────────────────────────────────────────

    def next_id(self) -> int:
        """The id of a new request."""
        return next(self._ids)

    def expect(self, ranks: Iterable[int], identity: int | None = None) -> PendingRequest:
        """Take note of a request that the caller sends, or that another notebook has sent."""
        request = PendingRequest(self.next_id() if identity is None else identity, ranks)
        self._open[request.id] = request
        return request

    def ask(self, request: PendingRequest, message: Order, buffers: Sequence[Any] = ()) -> PendingRequest:
        """Send a request that is noted already."""
        try:
            self._link().send(request.ranks, message, buffers)
        except BaseException:
            self._open.pop(request.id, None)  # no rank has heard of it, so none will answer
            raise
        request.note_sent(self._roster.question)
        return request

    def take_up(self, last: int) -> None:
        """Number on from the requests of the notebook before, which the ranks may still speak of."""
        self._ids = itertools.count(max(last, 0) + _IDS_APART)

    def interrupt(self) -> None:
        """Pass an interrupt on to all that have not answered; it is harmless where nothing runs."""
        for request in self.open():
            self._link().send(request.waiting_for(), Interrupt(request.id))

    # ── answers ─────────────────────────────────────────────────────────────────────────────────────

    def open(self) -> list[PendingRequest]:
        """The requests that lack an answer."""
        return list(self._open.values())

    def busy(self) -> set[int]:
        """The ranks that have not answered something."""
        return {rank for request in self.open() for rank in request.waiting_for()}

    def hear(self, rank: int, done: Done, frames: Sequence[Any] = ()) -> None:
        """A rank has answered; on the link's thread."""
        request = self._open.get(done.id)
        if request is not None and request.answer(rank, done, frames):
            self._open.pop(request.id, None)
            self.seen = max(self.seen, request.id)

    def miss(self, rank: int, identity: int, what: str = "its answer") -> None:
        """By a rank's own word, a request or its answer has not come, or could not be taken."""
        error = RuntimeError(f"{what} was lost in transit")
        self.hear(rank, Done(identity, failure=failure(rank, error), broken=True))

    def lose(self, rank: int, cause: str) -> None:
        """A rank has died, and answers nothing any more."""
        for request in self.open():
            if rank in request.waiting_for():
                self.hear(rank, lost(request.id, cause, rank))

    def close(self, cause: str) -> None:
        """The world is left: nobody waits any longer."""
        for request in self.open():
            for rank in request.waiting_for():
                request.answer(rank, lost(request.id, cause))

    # ── waiting ─────────────────────────────────────────────────────────────────────────────────────

    def wait(self, request: PendingRequest, presses: InterruptCounter, tick: Callable[[], None] = lambda: None) -> None:
        """Wait for all answers. An interrupt is passed on to the ranks, and waited for.

        Raises:
            Interrupted: ■ was pressed, but the request ended well, or not at all.
        """
        while not request.wait(TICK):
            tick()
            if presses.pressed:
                self._wait_interrupted(request, tick, presses)
                break
        if presses.pressed and not request.failures():
            raise Interrupted  # it ended well in the last moment: the notebook is still to stop here

    def _wait_interrupted(self, request: PendingRequest, tick: Callable[[], None], presses: InterruptCounter) -> None:
        request.interrupted = True
        self._link().send(request.waiting_for(), Interrupt(request.id))
        began = time.monotonic()
        while not request.wait(TICK):
            tick()
            if presses.again():
                self._link().send(request.waiting_for(), Interrupt(request.id))
            stuck, waited = request.waiting_for(), time.monotonic() - began
            deaf = self._roster.silent_for(stuck, _SILENCE) if waited > _SILENCE else []
            if waited > _INTERRUPT_PATIENCE or (deaf and deaf == stuck):
                print(self._addressed(_deaf(stuck, c_code=deaf == stuck)))
                raise Interrupted


def _deaf(ranks: list[int], *, c_code: bool) -> str:
    who, where = rank_specs.capital(rank_specs.named(ranks)), rank_specs.fold(ranks)
    one = len(ranks) == 1
    why = "C code there holds the GIL" if c_code else f"{'its' if one else 'their'} code ignored the interrupt"
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
    """What stands for the answer of a rank that will never answer, or of the whole world."""
    who = "The world" if rank is None else f"Rank {rank}"
    remedy = "restart to start a new world" if rank is None else "heal to put a new process in its place"
    sentence = f"{who} {cause}. Type %distributed {remedy}."
    return Done(identity, failure=Failure("RankDiedError", sentence, f"RankDiedError: {sentence}"))
