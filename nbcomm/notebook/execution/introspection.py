"""Questions to one rank that a person asks while typing, and who waits for the answers.

They go beside the `Dispatcher`: a rank answers them while it runs a cell, and nobody waits long.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from ...protocol import IntrospectReply, IntrospectRequest

if TYPE_CHECKING:
    from ..cluster.link import Link

PATIENCE = 0.5
"""Seconds to wait for an answer: a person who types waits no longer."""

_KEPT = 100
"""So many questions may be without an answer; older ones get none."""

Answer = Future[dict[str, Any] | None]
"""What the rank has told; None where it cannot."""


class Introspections:
    """The questions of one world; any thread.

    Args:
        link: to send by.
    """

    def __init__(self, link: Callable[[], Link]) -> None:
        self._link = link
        # A rank may answer a notebook's question when another notebook has taken its place: no number comes twice.
        self._ids = itertools.count(time.time_ns())
        self._open: dict[int, tuple[int, Answer]] = {}

    def ask(self, rank: int, kind: str, code: str, cursor: int, detail: int = 0) -> Answer:
        """Ask a rank; see `nbcomm.protocol.IntrospectRequest`. The answer may never come."""
        question = IntrospectRequest(next(self._ids), kind, code, cursor, detail)
        answer: Answer = Future()
        self._open[question.id] = rank, answer
        while len(self._open) > _KEPT:
            self._settle(min(self._open, default=0), None)
        self._link().send([rank], question)
        return answer

    def hear(self, rank: int, told: IntrospectReply) -> None:
        """A rank has answered; on the link's thread."""
        if self._open.get(told.id, (None,))[0] == rank:
            self._settle(told.id, told.content or None)

    def lose(self, rank: int) -> None:
        """A rank has died, and answers nothing any more."""
        for identity, (asked, _) in list(self._open.items()):
            if asked == rank:
                self._settle(identity, None)

    def _settle(self, identity: int, content: dict[str, Any] | None) -> None:
        _, answer = self._open.pop(identity, (None, None))
        if answer is not None and answer.set_running_or_notify_cancel():  # False: nobody waits for it any more
            answer.set_result(content)
