"""Routes what arrives from the ranks to the parts that it concerns, on the threads on which it arrives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ...faults import Faults, take_all
from ...protocol import Done, FromRank, InputCancelled, InputRequest, IntrospectReply, Mismatch, Output

if TYPE_CHECKING:
    from ...launch.link import Link
    from ..cluster.generations import Generations
    from ..cluster.rank_table import RankTable
    from ..execution.cell_run import CellExecutor
    from ..execution.dispatcher import Dispatcher
    from ..execution.introspection import Introspections
    from ..execution.reattach import Reattachment


class MessageRouter:
    """The router of what the ranks of one world say; it hears of their ends, too.

    Args:
        rank_table: keeps what each rank is and does.
        dispatcher: collects answers, and what the ranks ask a person.
        executor: shows output.
        generations: end the calls of a cell in which the ranks call different things.
        inquiries: wait for what a person typing wants to know.
        link: forgets what was sent to a rank that has ended.
        resumption: keeps what is about a cell that another notebook has begun.
        hurry: called when something has happened that the watch should look at soon.

    Attributes:
        resumption: None once that cell is shown here, or if there is none.
    """

    def __init__(  # noqa: PLR0913 - all those whom it concerns
        self,
        rank_table: RankTable,
        dispatcher: Dispatcher,
        executor: CellExecutor,
        generations: Generations,
        inquiries: Introspections,
        *,
        link: Link,
        resumption: Reattachment | None,
        hurry: Callable[[], None],
    ) -> None:
        self.resumption = resumption
        self._rank_table = rank_table
        self._link = link
        self._dispatcher = dispatcher
        self._executor = executor
        self._generations = generations
        self._inquiries = inquiries
        self._hurry = hurry
        self._faults = Faults()

    def receive(self, rank: int, message: FromRank, frames: Sequence[Any]) -> None:
        """Take a message; on the link's thread."""
        resumption = self.resumption  # read once: the main thread lets go of it
        if resumption is not None and resumption.take(rank, message, frames):
            return
        if isinstance(message, Output):
            with self._faults.beside("a piece of output could not be taken", self._executor.tell):
                self._executor.show(rank, message)
        elif isinstance(message, Done):
            self._end(rank, message, frames)
        elif isinstance(message, IntrospectReply):
            self._inquiries.hear(rank, message)
        elif isinstance(message, InputRequest | InputCancelled):
            self._dispatcher.input_requests.hear(rank, message)
        elif isinstance(message, Mismatch):
            self._abort(message)
        else:
            self._rank_table.hear(rank, message)

    def answer(self, rank: int, done: Done, frames: Sequence[Any] = ()) -> None:
        """Give an answer to those who wait for it."""
        if done.broken:  # also where nobody waits for this request any more
            self._generations.stale = True
        self._dispatcher.hear(rank, done, frames)

    def process_ended(self, rank: int, cause: str, unsaid: Output | None = None) -> None:
        """Note that a rank has died, and answers no more; show what it had written, but could not say."""
        self._generations.stale = True  # groups without it can go on
        take_all(
            lambda: self.receive(rank, unsaid, ()) if unsaid is not None else None,
            lambda: self._link.lose(rank),
            lambda: self._dispatcher.lose(rank, cause),  # somebody waits for it
            lambda: self._inquiries.lose(rank),
            self._hurry,
        )

    def _end(self, rank: int, done: Done, frames: Sequence[Any]) -> None:
        self._rank_table.note_doing(rank, self._generations.number, done)
        try:
            if self._executor.ended(rank, done):
                self._rank_table.note_part(rank, done, self._executor.culprits(rank, done))
        finally:  # somebody waits for it
            self.answer(rank, done, frames)

    def _abort(self, mismatch: Mismatch) -> None:
        """End the running cell, if it is the one in which the ranks differ."""
        cell = self._executor.cell
        if cell is not None and cell[0].id == mismatch.run and mismatch.generation == self._generations.number:
            self._generations.abort(cell[0], "MismatchError", mismatch.text)
