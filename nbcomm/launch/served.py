"""What the daemon of a node serves of the ranks' groups, as its notebook knows it, and the order that sets it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from ..errors import StateError
from ..protocol import NodeHello, Order, Report, ServeGroups, Serving
from .orders import Orders, why_not


class Served:
    """What the daemon of one node serves.

    Args:
        orders: to the node.
        changed: held by whoever calls a method that says so.
        lost: returns why the node will not answer, and what to do; empty as long as it may.

    Attributes:
        generation: whose groups; 0 if none.
        address: where ranks of other nodes reach it; empty if they do not.
    """

    def __init__(self, orders: Orders, changed: threading.Condition, lost: Callable[[], str] = lambda: "") -> None:
        self.generation = 0
        self.address = ""
        self._orders = orders
        self._changed = changed
        self._lost = lost
        self._last = 0

    def meet(self, hello: NodeHello) -> None:
        """Note what a daemon serves that has said hello. The caller holds the lock."""
        self.generation, self.address = hello.generation, hello.address

    def note(self, order: Order | None, answer: Report) -> None:
        """Note the answer to an order, if it is one of these. The caller holds the lock."""
        if isinstance(order, ServeGroups) and order.number > self._last:
            self._last = order.number
            served = isinstance(answer, Serving)
            self.generation = order.generation if served else 0  # the last one was ended before
            self.address = answer.address if isinstance(answer, Serving) else ""

    def order(  # noqa: PLR0913 - by keyword
        self,
        generation: int,
        *,
        store: bool = True,
        address: str = "",
        ranks: dict[str, str] | None = None,
        pages: Iterable[int] = (),
        again: bool = False,
    ) -> ServeGroups:
        """Return the order to serve a generation, for `give` or `serve`; the arguments are its."""
        return ServeGroups(self._orders.number(), generation, store, address, ranks or {}, [*pages], again)

    def serve(self, order: ServeGroups) -> None:
        """Give an order, and wait until it is done.

        Raises:
            StateError: it is not.
        """
        answer = self._orders.ask(order, over=lambda: bool(self._lost()))
        if not isinstance(answer, Serving):
            why = self._lost() or f"{why_not(answer)}. Type %distributed heal to mend it."
            raise StateError(f"The node could not serve the ranks' store: {why}")

    def give(self, order: ServeGroups) -> None:
        """Give an order, if none is under way; do not wait for it. Any thread may call this."""
        with self._changed:
            under_way = any(isinstance(other, ServeGroups) for other in self._orders.open)
        if not under_way:
            self._orders.give(order)
