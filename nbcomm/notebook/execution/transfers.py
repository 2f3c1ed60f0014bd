"""Values sent to the ranks and back, and calls of functions, which need both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ... import rank_spec as rank_specs
from ...errors import Interrupted, TransferError
from ...protocol import Call, Done, Pull, Push, rank_lists
from ...protocol.payload import pack, release, unpack
from ..output.cell_output import CellOutput
from .cell_run import tell_notes
from .dispatcher import UNSENT
from .interrupts import InterruptCounter

if TYPE_CHECKING:
    from ...protocol import MainLoopRequest as Order
    from ..cluster.pending import PendingRequest
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
        blob, buffers = pack((function, args, kwargs), self._bulk())
        answers: dict[int, Done] = {}
        try:
            with self._executor.alone():
                order = Call(UNSENT, blob, rank_lists.written(ranks), local_rank)
                request = self._executor.perform(order, CellOutput(ranks), answers.update, buffers)
                return [unpack_answer(request, rank) for rank in ranks]
        finally:
            release(blob)
            _let_go(answers)  # of the answers that are not used

    def push(self, variables: dict[str, Any], ranks: list[int]) -> None:
        """Bind variables on ranks; see `Session.push`."""
        blob, buffers = pack(variables, self._bulk())
        try:
            with self._executor.alone():
                request = self._dispatcher.expect(ranks)
                transfer(self._dispatcher, request, Push(request.id, blob), buffers)
        finally:
            release(blob)

    def pull(self, names: Sequence[str], ranks: list[int]) -> dict[str, list[Any]]:
        """Fetch variables from ranks; see `Session.pull`."""
        with self._executor.alone():
            request = self._dispatcher.expect(ranks)
            transfer(self._dispatcher, request, Pull(request.id, list(names)))
            try:
                values = [unpack_answer(request, rank) for rank in ranks]
                tell_notes(request.answers())
            finally:
                _let_go(request.answers())
            return {name: [value[name] for value in values] for name in names}


def transfer(dispatcher: Dispatcher, request: PendingRequest, message: Order, buffers: Sequence[Any] = ()) -> None:
    """Send a request, and wait until values have been transferred, to the ranks or from them.

    Args:
        dispatcher: sends, and waits.
        request: is already registered, and collects the answers.
        message: the request's message.
        buffers: the raw frames after it.

    Raises:
        TransferError: on some rank they could not be sent, or rebuilt.
        Interrupted: ■ was pressed.
    """
    with InterruptCounter() as interrupts:
        try:
            dispatcher.wait(dispatcher.ask(request, message, buffers), interrupts)
        except Interrupted:
            _let_go(request.answers())
            raise
    failures = dispatcher.failures(request)
    if failures:
        _let_go(request.answers())
        if interrupts.pressed:
            raise Interrupted
        said: dict[str, list[int]] = {}
        for rank, failure in failures.items():
            said.setdefault(failure.message.rstrip(".") or failure.name, []).append(rank)
        raise TransferError(" ".join(f"{message} ({rank_specs.named(ranks)})." for message, ranks in said.items()))


def _let_go(answers: Mapping[int, Done]) -> None:
    """Release what the ranks have sent, if it will not be used."""
    for done in answers.values():
        if done.blob is not None:
            release(done.blob)


def unpack_answer(request: PendingRequest, rank: int) -> Any:
    """Return the value that a rank has answered with.

    Raises:
        TransferError: it cannot be rebuilt here.
    """
    blob, frames = request.value(rank)
    try:
        return unpack(blob, frames)
    finally:
        release(blob)
