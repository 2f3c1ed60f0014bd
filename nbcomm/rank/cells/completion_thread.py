"""Answers to requests made while a user types, on a thread of its own, also while the main thread is busy.

An answer may run a user's code: ``__dir__``, ``__getattr__``, a property, ``__repr__``. That may print, wait, or never
end. So neither the main thread nor the link's does it. What such code prints is dropped, its collectives are refused,
and what takes too long is ended. C code that never returns cannot be ended: its thread is abandoned and replaced, a few
times.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from queue import SimpleQueue
from typing import Any

from ...protocol import IntrospectReply, IntrospectRequest
from ...threads import keep
from ..output.capture import unheard
from .completer import Enough, Insight

PATIENCE = 0.5
"""Seconds after which the notebook no longer waits for an answer; it uses the same limit."""

_ENOUGH = 2.0
"""Seconds after which an answer is ended."""

_LOST = 4.0
"""Seconds after which a thread whose answer does not end is abandoned."""

_MOST_LOST = 3
"""The most threads that may be lost; then there are no answers until one of them returns."""


class CompletionThread:
    """Answers one question after the other; "nothing", at once, while an earlier one takes too long.

    Args:
        insight: makes the object that finds the answers; each thread has its own.
        tell: sends an answer, from any thread.
        apart: entered around each answer, on its thread.
        clock: the time in seconds, for tests.
    """

    def __init__(
        self,
        insight: Callable[[], Insight],
        tell: Callable[[IntrospectReply], object],
        apart: Callable[[], AbstractContextManager[object]] = nullcontext,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._insight = insight
        self._tell = tell
        self._apart = apart
        self._clock = clock
        self._worker: _Worker | None = None
        self._lost: list[_Worker] = []

    def ask(self, question: IntrospectRequest) -> None:
        """Take a question, on the link's thread; never wait."""
        if self._worker is None or not self._worker.alive:
            self._worker = self._begin()
        if self._worker.spent > PATIENCE:
            self._tell(IntrospectReply(question.id, {}))
        else:
            self._worker.ask(question)

    def look(self) -> None:
        """End an answer that takes too long; must be called on the link's thread, a few times a second."""
        if self._worker is None:
            return
        self._lost = [worker for worker in self._lost if worker.alive]
        for worker in (self._worker, *self._lost):
            if worker.spent > _ENOUGH:
                worker.end()
        if self._worker.spent > _LOST and len(self._lost) < _MOST_LOST:
            self._worker.dismissed = True
            self._lost.append(self._worker)
            self._worker = self._begin()

    def _begin(self) -> _Worker:
        return _Worker(self._insight, self._tell, self._apart, self._clock)


class _Worker:
    """One thread and its questions."""

    def __init__(
        self,
        insight: Callable[[], Insight],
        tell: Callable[[IntrospectReply], object],
        apart: Callable[[], AbstractContextManager[object]],
        clock: Callable[[], float],
    ) -> None:
        self.dismissed = False
        """Set if the thread is to end after the current answer."""
        self._insight = insight
        self._tell = tell
        self._apart = apart
        self._clock = clock
        self._asked: SimpleQueue[tuple[IntrospectRequest, float]] = SimpleQueue()
        self._since = 0.0  # when the current answer began; 0 if there is none
        self._thread = keep("nbcomm-assistant", self._serve, again=0)

    @property
    def alive(self) -> bool:
        """Whether it can still answer."""
        return self._thread.is_alive()

    @property
    def spent(self) -> float:
        """Seconds that the current answer has taken so far; 0 if there is none."""
        since = self._since
        return self._clock() - since if since else 0.0

    def ask(self, question: IntrospectRequest) -> None:
        """Take a question."""
        self._asked.put((question, self._clock()))

    def end(self) -> None:
        """End the current answer, at its next step of Python."""
        # It may come a moment late. Then it ends the thread between two answers, and the next question starts another.
        ident = ctypes.c_ulong(self._thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(Enough))

    def _serve(self) -> None:
        with suppress(Enough):
            insight = self._insight()
            while not self.dismissed:
                self._answer(insight, *self._asked.get())

    def _answer(self, insight: Insight, question: IntrospectRequest, asked: float) -> None:
        content: dict[str, Any] = {}
        if self._clock() - asked < PATIENCE:
            self._since = self._clock()
            try:
                with self._apart(), unheard():
                    content = _find(insight, question)
            except BaseException:  # noqa: BLE001, S110 - whatever a user's code raises, the thread goes on
                pass
            self._since = 0.0
        self._tell(IntrospectReply(question.id, content))


def _find(insight: Insight, question: IntrospectRequest) -> dict[str, Any]:
    if question.kind == "complete":
        return insight.complete(question.code, question.cursor)
    return insight.inspect(question.code, question.cursor, question.detail)
