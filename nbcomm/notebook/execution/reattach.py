"""The takeover of a world whose notebook has gone: which cell runs, and what it has shown so far."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ...protocol import (
    Done,
    FromRank,
    Hello,
    InputCancelled,
    InputRequest,
    Output,
    StatusReply,
    StatusRequest,
    rank_lists,
)

if TYPE_CHECKING:
    from ...launch.link import Link
    from ..cluster.pending import PendingRequest
    from ..cluster.rank_table import RankTable

_PATIENCE = 5.0
"""Seconds that the ranks have to connect; one in C code that holds Python's lock does not."""

_AGAIN = 0.2
"""Seconds after which those who have not answered are asked once more."""


class Reattachment:
    """What the ranks repeat about a cell, kept until it is shown here: no notebook has received all of it."""

    def __init__(self) -> None:
        self.run = 0
        """The request that was under way, or whose end was not received; 0 if there is none."""
        self.ranks: list[int] = []
        """All ranks that run it."""
        self.request: PendingRequest | None = None
        """The collector of their answers."""
        self._repeating: set[int] = set()
        self._kept: deque[tuple[int, FromRank, Sequence[Any]]] = deque()
        self._over = False
        self._lock = threading.RLock()

    def take(self, rank: int, message: FromRank, frames: Sequence[Any]) -> bool:
        """Keep a message if it is about a cell; on the link's thread. Return whether no other code may see it now."""
        with self._lock:
            if self._over or not isinstance(message, Hello | Output | InputRequest | InputCancelled | Done):
                return False
            if isinstance(message, Hello):
                if message.run > self.run:
                    self.run, self.ranks = message.run, [*rank_lists.read(message.ranks)]
                    self._repeating.clear()
                if message.run == self.run:
                    self._repeating.add(rank)
                return False  # the rank table hears it, too
            if (message.id if isinstance(message, Done) else message.run) != self.run:
                return False
            self._kept.append((rank, message, frames))
            return not isinstance(message, Done)  # an answer counts at once, whether or not the cell is ever shown

    def await_ranks(self, rank_table: RankTable, link: Link) -> list[StatusReply]:
        """Wait until every living rank has reported what it does, and so has repeated its messages.

        Returns:
            The reports. `run` is 0 now if the notebook before had received its end, or if nothing runs.
        """
        deadline = time.monotonic() + _PATIENCE
        with rank_table.asking() as question:
            while question.silent and time.monotonic() < deadline:
                # Again and again: a rank that was not connected yet has not received it.
                link.send(sorted(question.silent), StatusRequest(question=question.number))
                question.wait(_AGAIN)
        snapshots = [snapshot for rank in rank_table.living if (snapshot := rank_table.snapshot(rank)) is not None]
        running = {snapshot.rank for snapshot in snapshots if snapshot.run == self.run}
        spoken = {snapshot.rank for snapshot in snapshots} & set(self.ranks)
        with self._lock:
            if spoken - self._repeating - running:  # they know that everything was received
                self.run = 0
            elif not running:  # it has ended: dead ranks have no part in it
                self.ranks = [rank for rank in self.ranks if rank not in rank_table.dead]
        return snapshots

    def repeat_answers(self, answer: Callable[[int, Done], None]) -> None:
        """Deliver the answers that came before there was a request."""
        with self._lock:
            for rank, message, _ in self._kept:
                if isinstance(message, Done) and message.id == self.run:
                    answer(rank, message)

    def hand_over(self, receive: Callable[[int, FromRank, Sequence[Any]], None]) -> None:
        """Deliver what was kept, in order, and keep nothing from now on; what comes meanwhile waits in `take`."""
        with self._lock:
            self._over = True
            while self._kept:
                receive(*self._kept.popleft())
