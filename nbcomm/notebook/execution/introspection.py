"""Questions to ranks while a user types, and their answers.

They bypass the `Dispatcher`: a rank answers them while it runs a cell, and nothing waits long for them.
"""

from __future__ import annotations

import itertools
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from ...protocol import IntrospectReply, IntrospectRequest

if TYPE_CHECKING:
    from ...launch.link import Link

PATIENCE = 0.5
"""Seconds to wait for an answer: a user who types waits no longer."""

_KEPT = 1000
"""The most open questions; older ones get no answer."""

Answer = Future[dict[str, Any] | None]
"""What the rank has answered; None if it cannot answer."""


class Introspections:
    """The questions of one world; any thread.

    Args:
        link: to send by.
    """

    def __init__(self, link: Link) -> None:
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
        self._link.send([rank], question)
        return answer

    def hear(self, rank: int, told: IntrospectReply) -> None:
        """Take a rank's answer; on the link's thread."""
        if self._open.get(told.id, (None,))[0] == rank:
            self._settle(told.id, told.content or None)

    def lose(self, rank: int) -> None:
        """End all questions to a rank that has died."""
        for identity, (asked, _) in list(self._open.items()):
            if asked == rank:
                self._settle(identity, None)

    def _settle(self, identity: int, content: dict[str, Any] | None) -> None:
        _, answer = self._open.pop(identity, (None, None))
        if answer is not None and answer.set_running_or_notify_cancel():  # False: it is no longer waited for
            answer.set_result(content)
