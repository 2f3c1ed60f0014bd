"""Values sent to the ranks and back, and calls of functions, which need both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ... import rank_spec as rank_specs
from ...errors import Interrupted, TransferError
from ...protocol import Call, CallRecord, Pull, Push, rank_lists
from ...protocol.payload import packed, unpack
from ..cluster.pending import UNSENT, PendingRequest
from ..output.cell_options import CellOptions
from ..output.cell_output import CellOutput
from .cell_run import tell_notes
from .interrupts import InterruptCounter

if TYPE_CHECKING:
    from ...protocol import MainLoopRequest as Order
    from .cell_run import CellExecutor
    from .dispatcher import Dispatcher


class Transfers:
    """Transfers of values to and from living ranks.

    Args:
        dispatcher: sends requests, and waits for answers.
        executor: one thing at a time.
        bulk: returns where large buffers are passed between processes; None if some are on another machine.
    """

    def __init__(self, dispatcher: Dispatcher, executor: CellExecutor, bulk: Callable[[], Path | None]) -> None:
        self._dispatcher = dispatcher
        self._executor = executor
        self._bulk = bulk

    def call(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        ranks: list[int],
        *,
        local_rank: bool = False,
    ) -> list[Any]:
        """Call a function on ranks; see `Session.call`."""
        return self._call((function, args, kwargs), ranks, CellOutput(ranks), local_rank=local_rank)[0]

    def trial(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        ranks: list[int],
        limit: float,
        *,
        quiet: bool = False,
    ) -> tuple[list[Any], list[list[CallRecord]]]:
        """Call a function on ranks as `call` does; return also which collectives each of them has called, with bytes.

        Args:
            function: the function.
            args: its arguments.
            ranks: who calls it.
            limit: seconds that it may take.
            quiet: show nothing of what it prints.

        Raises:
            TimeoutError: it took longer, and was interrupted.
        """
        output = CellOutput(ranks, CellOptions(quiet=quiet))
        return self._call((function, args, {}), ranks, output, limit, trace=True)

    def _call(
        self, what: tuple[Any, ...], ranks: list[int], output: CellOutput, limit: float | None = None, **how: bool
    ) -> tuple[list[Any], list[list[CallRecord]]]:
        with packed(what, self._bulk()) as (blob, buffers), self._executor.alone():
            order = Call(UNSENT, blob, rank_lists.written(ranks), **how)
            request = self._executor.perform(order, output, buffers=buffers, limit=limit)
            try:
                answers = request.answers()
                return [unpack_answer(request, rank) for rank in ranks], [list(answers[rank].steps) for rank in ranks]
            finally:
                request.let_go()

    def push(self, variables: dict[str, Any], ranks: list[int]) -> None:
        """Bind variables on ranks; see `Session.push`."""
        with (
            packed(variables, self._bulk()) as (blob, buffers),
            self._executor.alone(),
            transferred(self._dispatcher, ranks, Push(UNSENT, blob), buffers) as request,
        ):
            tell_notes(request.answers())

    def pull(self, names: Sequence[str], ranks: list[int]) -> dict[str, list[Any]]:
        """Fetch variables from ranks; see `Session.pull`."""
        order = Pull(UNSENT, list(names))
        with self._executor.alone(), transferred(self._dispatcher, ranks, order) as request:
            values = [unpack_answer(request, rank) for rank in ranks]
            tell_notes(request.answers())
            return {name: [value[name] for value in values] for name in names}


@contextmanager
def transferred(
    dispatcher: Dispatcher, ranks: Sequence[int], message: Order, buffers: Sequence[Any] = ()
) -> Iterator[PendingRequest]:
    """Send a request, and wait until values have been transferred, to the ranks or from them; for the block.

    Whatever happens, nothing of what the ranks send is left after the block.

    Args:
        dispatcher: sends, and waits.
        ranks: those that are asked.
        message: the request's message.
        buffers: the raw frames after it.

    Raises:
        TransferError: on some rank they could not be sent, or rebuilt.
        Interrupted: ■ was pressed.
    """
    request = dispatcher.prepare(ranks)
    try:
        _transfer(dispatcher, request, message, buffers)
        yield request
    finally:
        request.let_go()


def _transfer(dispatcher: Dispatcher, request: PendingRequest, message: Order, buffers: Sequence[Any]) -> None:
    with InterruptCounter() as interrupts:
        dispatcher.ask(request, message, buffers)
        dispatcher.wait(request, interrupts)
    failures = dispatcher.failures(request)
    if failures:
        if interrupts.pressed:
            raise Interrupted
        said: dict[str, list[int]] = {}
        for rank, failure in failures.items():
            said.setdefault(failure.message.rstrip(".") or failure.name, []).append(rank)
        raise TransferError(" ".join(f"{message} ({rank_specs.named(ranks)})." for message, ranks in said.items()))


def unpack_answer(request: PendingRequest, rank: int) -> Any:
    """Return the value that a rank has answered with.

    Raises:
        TransferError: it cannot be rebuilt here.
    """
    blob, frames = request.value(rank)
    return unpack(blob, frames)
