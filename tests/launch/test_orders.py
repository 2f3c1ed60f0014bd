"""Orders and their answers, without a node."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import pytest

from nbcomm.errors import Interrupted
from nbcomm.launch.orders import Orders
from nbcomm.protocol import Look, Obeyed, Order

PATIENCE = 60.0


class Played:
    """Orders, and what was sent; ``answers`` says what the daemon answers at once."""

    def __init__(self, answers: bool = True) -> None:
        self.sent: list[Order] = []
        self.answers = answers
        self.changed = threading.Condition()
        self.orders = Orders(self._send, itertools.count(7), self.changed)

    def _send(self, order: Order) -> None:
        self.sent.append(order)
        if self.answers:
            self.note(order.number)

    def note(self, number: int) -> Order | None:
        with self.changed:
            order = self.orders.note(number, Obeyed(number))
            self.changed.notify_all()
            return order

    @property
    def open(self) -> list[Order]:
        with self.changed:
            return self.orders.open


def test_who_asks_gets_the_answer() -> None:
    played = Played()
    assert played.orders.ask(Look(played.orders.number()), PATIENCE) == Obeyed(7)
    assert played.sent == [Look(7)]
    assert played.open == []


def test_an_order_is_open_until_it_is_answered() -> None:
    played = Played(answers=False)
    for _ in range(2):
        played.orders.give(Look(played.orders.number()))
    assert played.open == played.sent == [Look(7), Look(8)]
    assert played.note(7) == Look(7)
    assert played.open == [Look(8)]
    assert played.note(7) is None, "it was answered before"


@pytest.mark.parametrize("over", [lambda: True, lambda: False])
def test_who_has_waited_long_enough_gets_no_answer_and_no_other_daemon_the_order(over: Callable[[], bool]) -> None:
    played = Played(answers=False)
    timeout = PATIENCE if over() else 0.01
    assert played.orders.ask(Look(7), timeout, over) is None
    assert played.open == []
    assert played.note(7) is None


def test_a_wait_can_be_given_up() -> None:
    played = Played()
    with pytest.raises(Interrupted):
        played.orders.wait(lambda: False, PATIENCE, lambda: True)


@pytest.mark.parametrize(("coming", "times"), [(0.0, 1), (PATIENCE, 3)])
def test_while_another_daemon_comes_the_time_to_answer_has_not_begun(coming: float, times: int) -> None:
    looks = 0

    def look() -> bool:
        nonlocal looks
        looks += 1
        return looks < 3

    orders = Orders(lambda _: None, itertools.count(7), threading.Condition(), look)
    orders.wait(lambda: False, 0.04, coming=coming)
    assert looks >= times
    assert coming or looks == times
