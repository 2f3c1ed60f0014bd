"""One request to several ranks, and their answers as they come."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

from ...protocol import Done, Failure, Payload


class PendingRequest:
    """Collects one `Done` from each rank that was asked; threads meet here.

    Args:
        id: the message's id.
        ranks: who was asked.
    """

    def __init__(self, id: int, ranks: Iterable[int]) -> None:  # noqa: A002 - the field's name in messages
        self.id = id
        self.interrupted = False
        self.aborted = False
        """It was told to end on all ranks; nobody needs to be asked any more."""
        self.sent: tuple[int, float] | None = None
        """The last question that the ranks were asked before it was sent to them, and when; None until then."""
        self.ranks = sorted(ranks)
        self._waiting = set(self.ranks)
        self._answers: dict[int, Done] = {}
        self._frames: dict[int, Sequence[Any]] = {}
        self._changed = threading.Condition()

    def note_sent(self, question: int) -> None:
        """It is on its way, behind this question."""
        self.sent = question, time.monotonic()

    def answer(self, rank: int, done: Done, frames: Sequence[Any] = ()) -> bool:
        """Note a rank's answer; True when it was the last one missing."""
        with self._changed:
            if rank in self._waiting:
                self._waiting.discard(rank)
                self._answers[rank] = done
                self._frames[rank] = frames
            self._changed.notify_all()
            return not self._waiting

    def wait(self, timeout: float) -> bool:
        """Wait until all have answered, at most so many seconds; returns early when one has."""
        with self._changed:
            if self._waiting:
                self._changed.wait(timeout)
            return not self._waiting

    def waiting_for(self) -> list[int]:
        """The ranks that have not answered, ascending."""
        with self._changed:
            return sorted(self._waiting)

    def answers(self) -> dict[int, Done]:
        """The answers so far, by rank."""
        with self._changed:
            return dict(self._answers)

    def failures(self) -> dict[int, Failure]:
        """The failures among the answers, by rank, ascending."""
        return {rank: done.failure for rank, done in sorted(self.answers().items()) if done.failure is not None}

    def value(self, rank: int) -> tuple[Payload, Sequence[Any]]:
        """The blob that a rank sent, and the raw frames behind it."""
        blob = self.answers()[rank].blob
        if blob is None:
            raise RuntimeError(f"Rank {rank} sent no value.")
        return blob, self._frames[rank]
