"""The orders to a node that are not answered yet: each is given to one daemon after the other until it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from ..errors import Interrupted
from ..protocol import Failed, Order, Report

_TICK = 0.05
"""Seconds between two checks."""

ANSWER, COMING = 10.0, 30.0
"""Seconds that a daemon has to answer a short order, and seconds more that another one may take to come: mostly that
are tenths, but it may have to wait for a seed that does not answer, and then to import."""


def why_not(answer: Report | None) -> str:
    """Tell why a short order was not done; None is no answer."""
    return answer.why if isinstance(answer, Failed) else f"no answer within {ANSWER:g} s"


class Orders:
    """Orders, and the answers of those who wait for one.

    Args:
        send: sends one to the present daemon.
        numbers: gives each order a number that no other order of this world has.
        changed: notified after `note`, and by whoever else changes what is waited for.
        look: called again and again while somebody waits: it replaces a daemon that has ended, and returns whether one
            that was started has not spoken yet.
    """

    def __init__(
        self,
        send: Callable[[Order], None],
        numbers: Iterator[int],
        changed: threading.Condition,
        look: Callable[[], bool] = lambda: False,
    ) -> None:
        self._send = send
        self._look = look
        self._numbers = numbers
        self._changed = changed
        self._open: dict[int, Order] = {}
        self._answers: dict[int, Report | None] = {}  # to those who wait for one

    def number(self) -> int:
        """Return a number for an order."""
        return next(self._numbers)

    @property
    def open(self) -> list[Order]:
        """Those that are not answered; another daemon gets them. The caller holds the lock."""
        return list(self._open.values())

    def give(self, order: Order, *, asks: bool = False) -> None:
        """Give an order.

        Args:
            order: as it is.
            asks: its answer is wanted: see `answer`.
        """
        with self._changed:
            self._open[order.number] = order
            if asks:
                self._answers[order.number] = None
        self._send(order)

    def answer(
        self,
        order: Order,
        timeout: float | None = None,
        over: Callable[[], bool] = lambda: False,
        *,
        looks: bool = True,
    ) -> Report | None:
        """Return the answer to an order that was given to ask; None if there is none in time, or it is over.

        Args:
            order: as it is.
            timeout: seconds; by default those for a short order.
            over: whether nobody waits any more.
            looks: as for `wait`.
        """
        timeout, coming = (ANSWER, COMING) if timeout is None else (timeout, 0.0)
        self.wait(lambda: self._answers[order.number] is not None or over(), timeout, coming=coming, looks=looks)
        with self._changed:
            return self._answers[order.number]

    def forget(self, order: Order) -> None:
        """Wait for its answer no more: no other daemon gets the order."""
        with self._changed:
            self._open.pop(order.number, None)
            self._answers.pop(order.number, None)

    def ask(
        self, order: Order, timeout: float | None = None, over: Callable[[], bool] = lambda: False
    ) -> Report | None:
        """Give an order, and return its answer, as `answer` does."""
        try:
            self.give(order, asks=True)
            return self.answer(order, timeout, over)
        finally:  # also after ■
            self.forget(order)

    def note(self, number: int, answer: Report) -> Order | None:
        """Note an answer; return the order, if it was open. The caller holds the lock."""
        order = self._open.pop(number, None)
        if number in self._answers:
            self._answers[number] = answer
        return order

    def wait(
        self,
        condition: Callable[[], bool],
        timeout: float,
        given_up: Callable[[], bool] = lambda: False,
        *,
        coming: float = 0.0,
        looks: bool = True,
    ) -> None:
        """Wait until a condition holds or the time is over; the caller does not hold the lock.

        Args:
            condition: called with the lock.
            timeout: seconds.
            given_up: whether the caller has given up.
            coming: seconds more, at most, in which a daemon that was started has not spoken.
            looks: another daemon will do as well, so one that has ended is replaced meanwhile.

        Raises:
            Interrupted: it was given up.
        """
        deadline = time.monotonic() + timeout
        last = deadline + coming
        while True:
            with self._changed:
                if condition() or time.monotonic() >= deadline:
                    return
                if given_up():
                    raise Interrupted
                self._changed.wait(_TICK)
            if looks and self._look():
                deadline = max(deadline, min(last, time.monotonic() + timeout))
