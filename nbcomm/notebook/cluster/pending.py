"""One request to several ranks, and their answers as they come."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

from ...protocol import Abort, Done, Failure, Interrupt, Payload
from ...protocol.payload import release

UNSENT = 0
"""The id of a message until it is sent."""


class PendingRequest:
    """The collector of one `Done` from each rank that was asked; threads meet here.

    Args:
        id: the message's id.
        ranks: those that were asked.
    """

    def __init__(self, id: int, ranks: Iterable[int]) -> None:  # noqa: A002 - the field's name in messages
        self.id = id
        self.interrupted = False
        self.aborted = False
        """It was told to end on all ranks; no more status requests are needed."""
        self.culprits: list[int] = []
        """The ranks because of whose failure or death it was ended on the others; empty if that was not the reason."""
        self.sent: tuple[int, float] | None = None
        """The last status request sent before this request, and when this request was sent; None until then."""
        self.ending: tuple[int, Interrupt | Abort] | None = None
        """The order to end it, and the last status request before that; who does not obey is told again."""
        self.ranks = sorted(ranks)
        self._asked = frozenset(self.ranks)
        self._waiting = set(self.ranks)
        self._failed = False
        self._let_go = False
        self._answers: dict[int, Done] = {}
        self._frames: dict[int, Sequence[Any]] = {}
        self._changed = threading.Condition()

    def note_sent(self, question: int) -> None:
        """Note that the request was sent, after this status request."""
        self.sent = question, time.monotonic()

    def answer(self, rank: int, done: Done, frames: Sequence[Any] = ()) -> bool:
        """Note a rank's answer; return True if it was the last one missing."""
        with self._changed:
            if rank in self._waiting:
                self._waiting.discard(rank)
                self._answers[rank] = done
                self._frames[rank] = frames
                first = done.failure is not None and not self._failed
                self._failed |= first
                if first or not self._waiting:  # who was woken by each answer would look at all of them each time
                    self._changed.notify_all()
                if self._let_go and done.blob is not None:
                    release(done.blob)
            return not self._waiting

    def wait(self, timeout: float) -> bool:
        """Wait until all ranks have answered, at most ``timeout`` seconds; return early when the first one fails."""
        with self._changed:
            if self._waiting:
                self._changed.wait(timeout)
            return not self._waiting

    def blame(self, ranks: Iterable[int]) -> None:
        """Note because of whom it is ended; those that were not asked have no failure in it that could be named."""
        self.culprits = sorted(self._asked.intersection(ranks))

    def stopped(self, rank: int, failure: Failure) -> bool:
        """Return whether this failure of a rank only says that it was stopped because others had failed."""
        return bool(self.culprits) and rank not in self.culprits and failure.name == "HangError"

    def concerns(self, rank: int) -> bool:
        """Return whether this rank was asked."""
        return rank in self._asked

    def awaits(self, rank: int) -> bool:
        """Return whether this rank was asked, and has not answered."""
        return rank in self._waiting

    def waiting_for(self) -> list[int]:
        """Return the ranks that have not answered, ascending."""
        with self._changed:
            return sorted(self._waiting)

    def answers(self) -> dict[int, Done]:
        """Return the answers so far, by rank."""
        with self._changed:
            return dict(self._answers)

    def failures(self) -> dict[int, Failure]:
        """Return the failures among the answers, by rank, ascending."""
        return {rank: done.failure for rank, done in sorted(self.answers().items()) if done.failure is not None}

    def let_go(self) -> None:
        """Remove the files of the values that the ranks have sent, and of those that they will: nobody uses them."""
        with self._changed:
            self._let_go = True
            for done in self._answers.values():
                if done.blob is not None:
                    release(done.blob)

    def value(self, rank: int) -> tuple[Payload, Sequence[Any]]:
        """Return the blob that a rank sent, and the raw frames after it."""
        blob = self.answers()[rank].blob
        if blob is None:
            raise RuntimeError(f"Rank {rank} sent no value.")
        return blob, self._frames[rank]
