"""One cell at a time, from the request to its end: sent to the ranks, shown while it runs, judged by how it ended."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from ... import rank_spec as rank_specs
from ...analysis.collective_log import CollectiveLog
from ...errors import CellError, Interrupted, StateError
from ...faults import Faults
from ...protocol import Call, Done, Output, Run, rank_lists
from ...sentences import wrapped
from ..cluster.pending import PendingRequest
from ..output.cell_output import CellOutput
from ..output.failures import cell_error, syntax_error
from ..output.last_cell import CellRun, remember
from ..output.past_cells import PastOutputs
from .interrupts import InterruptCounter

if TYPE_CHECKING:
    from ...protocol import Failure
    from ..cluster.generations import Generations
    from ..widgets.mirrors import Mirrors
    from .dispatcher import Dispatcher

Aftermath = Callable[[Mapping[int, Done]], None]
"""Called with the ranks' answers when a cell has ended, well or not."""


class CellExecutor:
    """The executor of cells.

    Args:
        dispatcher: sends requests, and waits for answers.
        generations: repairs the groups between cells.
        size: how many ranks the world has.
        widgets: those of the ranks.
        settle: lets the notebook's file hold the panel's state; called with whether the cell has failed.
        hurry: called when something begins to run.

    Attributes:
        cell: the request that runs, and its output; None between cells.
        collective_log: what is known of its collectives, or of the last one's.
        ran: what the last cells have shown, the newest last.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - what a cell touches
        self,
        dispatcher: Dispatcher,
        generations: Generations,
        size: Callable[[], int],
        widgets: Mirrors,
        settle: Callable[[bool], None],
        hurry: Callable[[], None],
    ) -> None:
        self.cell: tuple[PendingRequest, CellOutput | None] | None = None
        self.collective_log = CollectiveLog()
        self.ran: deque[CellRun] = deque()
        self._dispatcher = dispatcher
        self._generations = generations
        self._size = size
        self._widgets = widgets
        self._settle = settle
        self._hurry = hurry
        self._outputs: PastOutputs[CellOutput] = PastOutputs()
        self._faults = Faults()
        self._told: deque[str] = deque(maxlen=8)
        self._lock = threading.Lock()  # one cell at a time, from any thread

    @property
    def taken(self) -> bool:
        """Whether something is running at the moment."""
        return self._lock.locked()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Take the executor for the block, and refuse to wait for it: a cell cannot run inside another."""
        if not self._lock.acquire(blocking=False):
            raise StateError("This world is running another cell; wait for it, or interrupt it.")
        try:
            yield
        finally:
            self._lock.release()

    def perform(
        self,
        message: Run | Call,
        output: CellOutput,
        aftermath: Aftermath = lambda _: None,
        buffers: Sequence[Any] = (),
        limit: float | None = None,
    ) -> PendingRequest:
        """Run something on ranks, between two fences, and show its output; raise what it raised.

        Raises:
            TimeoutError: it took longer than the limit, in seconds, and was interrupted.
        """
        with InterruptCounter(limit) as interrupts:
            busy = sorted(self._dispatcher.busy())
            if busy and self._generations.due:  # the groups need all of them
                who = rank_specs.named(busy)
                raise StateError(
                    f"{rank_specs.capital(who)} still run{'s' * (len(busy) == 1)} an earlier cell, and all ranks "
                    "must re-form their process groups before the next cell; nothing was run. Wait for it, or type "
                    f"%distributed heal {rank_specs.fold(busy)} to replace {'it' if len(busy) == 1 else 'them'}."
                )
            self._generations.renew(lambda: interrupts.pressed)
            if interrupts.pressed:
                raise Interrupted
            # Ids are in the order of the requests, and the forming of groups has had one: see `Reconciler`.
            request = self._dispatcher.prepare(rank_lists.read(message.ranks))
            send = partial(self._dispatcher.ask, request, message, buffers)
            try:
                self.conduct(
                    request, output, interrupts, send, aftermath, message.number if isinstance(message, Run) else None
                )
            except BaseException as error:
                request.let_go()  # what it has returned, or still will
                if interrupts.timed_out and isinstance(error, Interrupted | CellError):
                    raise TimeoutError from None
                raise
        return request

    def conduct(  # noqa: PLR0913, PLR0917 - all that differs between a cell, a call, and another notebook's cell
        self,
        request: PendingRequest,
        output: CellOutput,
        interrupts: InterruptCounter,
        send: Callable[[], object],
        aftermath: Aftermath = lambda _: None,
        number: int | None = 0,
    ) -> None:
        """Send a request, and show its output until it has ended on all ranks.

        Args:
            request: the request, which nobody knows of yet.
            output: shows it.
            interrupts: counts those meanwhile.
            send: called when all is prepared for messages about it.
            aftermath: see there.
            number: that of the cell, 0 if it is not known; None if it is no cell.

        Raises:
            CellError: it failed on some rank.
            CellSyntaxError: it could be compiled on none.
            Interrupted: ■ was pressed.
        """
        run = CellRun(number or 0, request.ranks, output.area)
        if number is not None:
            remember(self.ran, run)
        with run.ending():
            self._conduct(request, output, interrupts, send, aftermath, number or 0)

    def begin(self, request: PendingRequest, output: CellOutput, number: int = 0, *, asks: bool = True) -> None:
        """Prepare for messages about a request, which may ask for input or not."""
        self.collective_log.begin(number, request.ranks)
        self._dispatcher.input_requests.begin(request.id, asks=asks)
        self.cell = request, output
        output.widgets = self._widgets
        self._outputs.add(request.id, output)
        self._hurry()

    def _conduct(  # noqa: PLR0913, PLR0917 - as above
        self,
        request: PendingRequest,
        output: CellOutput,
        interrupts: InterruptCounter,
        send: Callable[[], object],
        aftermath: Aftermath,
        number: int,
    ) -> None:
        failures: dict[int, Failure] = {}
        try:
            self.begin(request, output, number, asks=not interrupts.limited)
            send()
            self._dispatcher.wait(
                request, interrupts, partial(self._dispatcher.input_requests.tick, request, output, interrupts)
            )
            failures = self._dispatcher.failures(request)
        except Interrupted:
            raise
        except BaseException:
            self._generations.stale = True  # some ranks may have the request, and others not
            self._dispatcher.abandon(request)
            raise
        finally:
            self.cell = None
            answers = request.answers()
            # The fence after the cell holds, whatever fails before it.
            with self._faults.beside("a question could not be closed"):
                self._dispatcher.input_requests.end()
            with self._faults.beside("the end of its output could not be shown", _print):
                output.close(failures)
            with self._faults.beside("its collectives could not be kept", _print):
                self.collective_log.end(answers)
            with self._faults.beside("the panel could not be saved", _print):
                self._settle(bool(failures))
            self._generations.look_back(answers)
            if not request.waiting_for():
                interrupts.again()  # those that were meant for the cell
                with suppress(StateError, Interrupted):  # the next cell tries again, and reports it
                    self._generations.renew(interrupts.again if interrupts.pressed else lambda: interrupts.pressed)
            if request.sent is not None:
                with self._faults.beside("its pictures or its trace could not be made", _print):
                    aftermath(answers)
            tell_notes(answers)
            self._told.extend(sorted(output.lost))
            while self._told:
                _print(self._told.popleft())
        if failures:
            interrupted = [rank for rank, done in answers.items() if done.interrupted]
            stopped = [rank for rank, failure in failures.items() if request.stopped(rank, failure)]
            error = syntax_error(failures, request.ranks) or cell_error(
                failures, range(self._size()), stopped, interrupted if request.interrupted else ()
            )
            if len(interrupted) == len(failures) and request.interrupted:
                raise Interrupted(f"the cell was interrupted on {rank_specs.named(interrupted)}.")
            raise error
        if interrupts.pressed:
            raise Interrupted  # after its end: the notebook must still stop here

    def tell(self, sentence: str) -> None:
        """Show a sentence below the cell that runs, or else below the next one. From any thread."""
        self._told.append(sentence)
        cell = self.cell
        if cell is not None and cell[1] is not None:
            cell[1].notice(sentence)

    # ── what arrives, on other threads ──────────────────────────────────────────────────────────────

    def show(self, rank: int, message: Output) -> None:
        """Add what a rank prints and displays."""
        output = self._outputs.get(message.run)
        items = self._widgets.hear(rank, message.items, output.area if output is not None else None)
        if output is not None and items:
            self._outputs.note(message.run, items)
            output.feed(rank, items)

    def culprits(self, rank: int, done: Done) -> list[int]:
        """Return because of whose failure a rank was stopped, if this answer says no more than that."""
        cell = self.cell
        if cell is None or cell[0].id != done.id or done.failure is None:
            return []
        return cell[0].culprits if cell[0].stopped(rank, done.failure) else []

    def ended(self, rank: int, done: Done) -> bool:
        """Note the end of a rank's part: what it prints from now on is late.

        Returns:
            Whether it was a part of a cell.
        """
        output = self._outputs.get(done.id)
        if output is not None:
            output.ended(rank)
        return output is not None


def _print(fault: str) -> None:
    sys.stderr.write(wrapped(f"nbcomm: {fault}\n"))


def tell_notes(answers: Mapping[int, Done]) -> None:
    """Print what the ranks say beside their answers."""
    if not any(done.notes for done in answers.values()):
        return  # mostly
    told = [(rank, note) for rank, done in sorted(answers.items()) for note in done.notes]
    alike = rank_specs.together([rank for rank, _ in told], [note for _, note in told])
    for note, those in alike.items():
        # A notice is no red box, as an error is.
        sys.stdout.write(wrapped(f"nbcomm: on {rank_specs.named(those)} {note}\n"))
