"""Puts the input requests of ranks to the person: one input box at a time, in rank order, each with its rank's name.

The thread that waits for the cell asks, for only there Jupyter and a terminal can; meanwhile another one goes on
showing what the ranks print, and sees whether the input request still stands. Where it does not (its rank has died, or
the cell was ended), the box is left open and nobody waits for it: a front end drops what is typed into it.
"""

from __future__ import annotations

import getpass
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...faults import Faults
from ...protocol import InputCancelled, InputReply, InputRequest, StatusReply
from ...threads import keep
from ..display.displays import label

if TYPE_CHECKING:
    from ...launch.link import Link
    from ..cluster.pending import PendingRequest
    from ..cluster.rank_table import RankTable
    from ..output.cell_output import CellOutput
    from .interrupts import InterruptCounter

_TICK = 0.05
"""Seconds between two looks at the output, and at whether the input request still stands."""

_TOGETHER = 0.15
"""Seconds that an input request waits for the other ranks: what they show before theirs is folded."""

_IN_ORDER = 1.0
"""Seconds that it waits for ranks before its own that run, and may ask yet."""

_NO_BOX = "StdinNotImplementedError"


@dataclass
class _OpenRequest:
    """One input request, the how-manieth of its rank in this cell, when it came, and the last status question then."""

    rank: int
    asking: InputRequest
    place: int
    came: float
    asked: int

    @property
    def key(self) -> tuple[int, int]:
        """Questions come in this order: first every rank's first one."""
        return self.place, self.rank


@dataclass
class _Dialogue:
    """With whom the last one was, since when it has its answer, and the last status question by then."""

    rank: int
    since: float
    asked: int


class InputPrompts:
    """The input requests of the cell that runs.

    Args:
        link: to answer by.
        rank_table: knows which ranks wait for others.
        clock: the time in seconds, for tests.
    """

    def __init__(self, link: Link, rank_table: RankTable, clock: Callable[[], float] = time.monotonic) -> None:
        self._link = link
        self._rank_table = rank_table
        self._clock = clock
        self._faults = Faults()
        self._lock = threading.Lock()
        self._run: int | None = None
        self._asks = True
        self._open: dict[tuple[int, int], _OpenRequest] = {}
        self._counts: dict[int, int] = {}
        self._answered: dict[tuple[int, int], tuple[InputReply, int]] = {}  # and the last status question by then
        self._unheard: dict[
            tuple[int, int], int
        ] = {}  # input requests known from a report only, and what that answered
        self._talking: _Dialogue | None = None

    # ── what arrives, on other threads ──────────────────────────────────────────────────────────────

    def begin(self, run: int, *, asks: bool = True) -> None:
        """Collect the input requests of a cell that begins.

        Args:
            run: the cell's request.
            asks: whether the person is asked. What has a time limit must not wait for a person: it gets an EOFError.
        """
        with self._lock:
            self._run, self._asks, self._talking = run, asks, None
            for known in (self._open, self._counts, self._answered, self._unheard):
                known.clear()

    def end(self) -> None:
        """Nobody waits for the cell any more."""
        with self._lock:
            self._run = None
            self._open.clear()

    def hear(self, rank: int, message: InputRequest | InputCancelled) -> None:
        """Note that a rank asks, or no longer asks."""
        key = rank, message.number
        with self._lock:
            if isinstance(message, InputCancelled):
                self._open.pop(key, None)
            elif message.run == self._run and not self._asks:
                text = "Nobody is asked for input here: this code is called with a time limit, as by a check."
                self._link.send([rank], InputReply(message.run, message.number, text, "EOFError"))
            elif message.run == self._run and key not in self._open:  # a rank that is connected again asks again
                place = self._counts[rank] = self._counts.get(rank, 0) + 1
                self._open[key] = _OpenRequest(rank, message, place, self._clock(), self._rank_table.question)
            elif message.run != self._run:
                text = "The notebook no longer waits for this cell, so it cannot ask for input."
                self._link.send([rank], InputReply(message.run, message.number, text, "EOFError"))

    def compare(self, rank: int, report: StatusReply) -> None:
        """Compare input requests with those that a rank reports: hear those that are lacking, answer again, let go."""
        asked = {(rank, asking.number): asking for asking in report.asking}
        with self._lock:
            gone = [
                key
                for key, it in self._open.items()
                if key[0] == rank and key not in asked and it.asked < report.question
            ]
            for key in gone:
                del self._open[key]
            unheard = {key: it for key, it in asked.items() if key not in self._open and key not in self._answered}
            # Not at its first report: the input request comes behind what was shown before it.
            lacking = [it for key, it in unheard.items() if self._unheard.get(key, report.question) < report.question]
            self._unheard = {
                **{key: it for key, it in self._unheard.items() if key[0] != rank},
                **{key: self._unheard.get(key, report.question) for key in unheard},
            }
            lost = [
                reply for key in asked for reply, by in [self._answered.get(key, (None, 0))] if by < report.question
            ]
        for asking in lacking:
            self.hear(rank, asking)
        for reply in lost:
            if reply is not None:
                self._link.send([rank], reply)

    # ── the thread that waits for the cell ──────────────────────────────────────────────────────────

    @property
    def waiting(self) -> str:
        """Who waits for an answer, in words; empty if nobody does."""
        return next((f"rank {rank} {said}" for rank, said in self.asking.items()), "")

    @property
    def asking(self) -> dict[int, str]:
        """What each rank asks that waits for an answer, in words: who is answered first comes first."""
        with self._lock:
            requests = sorted(self._open.values(), key=lambda input_request: input_request.key)
        said = {request.rank: " ".join(request.asking.prompt.split()) for request in requests}
        return {rank: f"asks in the cell{f': {prompt}' if prompt else ''}" for rank, prompt in said.items()}

    def tick(self, request: PendingRequest, output: CellOutput, interrupts: InterruptCounter) -> None:
        """Show what is new; if an input request is due, put it to the person, and wait for the answer."""
        with self._faults.beside("output could not be shown"):  # the ranks run on, and are waited for
            output.render()
        with self._faults.beside("a question could not be put"):
            self._put_due(request, output, interrupts)

    def _put_due(self, request: PendingRequest, output: CellOutput, interrupts: InterruptCounter) -> None:
        while not interrupts.pressed and (input_request := self._due(request)) is not None:
            reply = self._put(input_request, request, output, interrupts)
            if reply is None:
                return
            key = input_request.rank, input_request.asking.number
            with self._lock:
                self._answered[key] = reply, self._rank_table.question
                self._open.pop(key, None)
            with self._faults.beside("output could not be shown after an input box"):
                output.cut()
            self._link.send([input_request.rank], reply)
            dialogue = _Dialogue(input_request.rank, self._clock(), self._rank_table.question)
            self._talking = dialogue if input_request.asking.dialogue else None

    def _due(self, request: PendingRequest) -> _OpenRequest | None:
        """Return the input request to ask now, if there is one.

        Ranks 0 to 3 run a cell, and 1 and 3 do not ask::

            0.00 s   rank 2 asks    ranks 0 and 1 are before it and may ask, so it waits for them, 1 s at most
            0.50 s   rank 0 asks    nobody is before it, but others may ask: it waits 0.15 s for what they show
            0.65 s   box of rank 0
            1.00 s   box of rank 2  without rank 1

        Who may not ask, since it has ended or waits for others, is not waited for. A debugger is held to its end: its
        rank's next input request goes before all others, and is waited for as long as rank 1's was.
        """
        running = set(request.waiting_for())
        with self._lock:
            open_requests = sorted((q for q in self._open.values() if q.rank in running), key=lambda q: q.key)
            talking = self._talking
        if not open_requests or request.aborted:
            return None
        now, first, asking = self._clock(), open_requests[0], {q.rank for q in open_requests}
        may_ask = {rank for rank in running - asking if not self._waits(rank, request, first.asked)}
        if talking is not None:
            if talking.rank in asking:
                return next(q for q in open_requests if q.rank == talking.rank)
            undecided = talking.rank in may_ask or (talking.rank in running and not self._has_moved(talking))
            if undecided and now - talking.since < _IN_ORDER:
                return None
        return first if now - first.came >= self._patience(first, may_ask) else None

    def _patience(self, input_request: _OpenRequest, may_ask: set[int]) -> float:
        """Return the seconds that an input request waits for ranks that may still ask."""
        if not may_ask:
            return 0.0
        before = any((self._counts.get(rank, 0) + 1, rank) < input_request.key for rank in may_ask)
        return _IN_ORDER if before else _TOGETHER

    def _waits(self, rank: int, request: PendingRequest, asked: int) -> bool:
        """Return whether a rank is known to wait for other ranks, so that it does not ask before they continue.

        Its report must be from after the input request that it may precede: they may all have left the same barrier.
        """
        snapshot = self._rank_table.snapshot(rank)
        if snapshot is None or snapshot.run != request.id or snapshot.question <= asked:
            return False
        return bool(snapshot.doing.waits)

    def _has_moved(self, dialogue: _Dialogue) -> bool:
        """Return whether the rank's report is from after the answer; before it, the rank may have waited for others."""
        snapshot = self._rank_table.snapshot(dialogue.rank)
        return snapshot is not None and snapshot.question > dialogue.asked

    def _put(
        self, input_request: _OpenRequest, request: PendingRequest, output: CellOutput, interrupts: InterruptCounter
    ) -> InputReply | None:
        """Open the box; None if it was broken off."""
        asking = input_request.asking
        if not interrupts.heard:
            text = "The cell ran on a background thread of the notebook; only the main thread can ask for input."
            return InputReply(asking.run, asking.number, text, _NO_BOX)
        with self._faults.beside("output could not be shown above an input box"):
            output.expose(input_request.rank)
        prompt = f"{label((input_request.rank,))} {asking.prompt}"
        text = error = ""
        try:
            with self._attended(input_request, request, output, interrupts), interrupts.breakable():
                text = getpass.getpass(prompt) if asking.hidden else input(prompt)
        except KeyboardInterrupt:
            return None
        except EOFError:
            text, error = "EOF when reading a line", "EOFError"
        except Exception as problem:  # noqa: BLE001 - whatever a front end does, the rank waits for an answer
            text, error = _why(input_request, problem), _NO_BOX
        return InputReply(asking.run, asking.number, text, error)

    @contextmanager
    def _attended(
        self, input_request: _OpenRequest, request: PendingRequest, output: CellOutput, interrupts: InterruptCounter
    ) -> Iterator[None]:
        """While a box is open: show output, and close it when nobody waits for the answer any more."""
        answered = threading.Event()

        def attend() -> None:
            while not answered.wait(_TICK):
                with self._faults.beside("output could not be shown beside an input box"):
                    output.render()  # the box must be broken off all the same
                if not self._stands(input_request, request):
                    interrupts.break_off()
                    return

        thread = keep("nbcomm-input", attend, self._faults)
        try:
            yield
        finally:
            answered.set()
            thread.join()
            interrupts.settle()

    def _stands(self, input_request: _OpenRequest, request: PendingRequest) -> bool:
        with self._lock:
            known = (input_request.rank, input_request.asking.number) in self._open
        return known and not request.aborted and request.awaits(input_request.rank)


def _why(input_request: _OpenRequest, problem: Exception) -> str:
    prompt = " ".join(input_request.asking.prompt.split())
    what = f"Rank {input_request.rank} asks for input" + (f" ({prompt})" if prompt else "")
    if type(problem).__name__ != _NO_BOX:
        return f"{what}, but that failed in the notebook: {type(problem).__name__}: {problem}"
    return f"{what}, but this front end has no input box: run the notebook in Jupyter, or give the values in the code."
