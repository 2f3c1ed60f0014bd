"""Where the ranks of a node meet, and see what those of other nodes are about to do: orders to its daemon."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from ..errors import StateError
from ..protocol import (
    Failed,
    Mirror,
    MirrorDoor,
    MirrorPeer,
    Obeyed,
    OpenMirror,
    Order,
    RelayStore,
    Report,
    ServeStore,
    StoreDoor,
)
from .orders import Orders, why_not

_NO_MIRROR = "A node could not compare its ranks' calls with those of others"


class MeetingPlace:
    """The store of a node, or its way to one, and its part of the board between nodes.

    Args:
        orders: to the node.
        changed: held by whoever calls a method that says so.
        lost: returns why the node will not answer, and what to do; empty as long as it may.

    Attributes:
        store: the generation whose ranks can meet there; 0 if none can.
    """

    def __init__(self, orders: Orders, changed: threading.Condition, lost: Callable[[], str] = lambda: "") -> None:
        self.store = 0
        self._orders = orders
        self._changed = changed
        self._lost = lost
        self._last = 0

    def note(self, order: Order | None, answer: Report) -> None:
        """Note the answer to an order, if it is one of these. The caller holds the lock."""
        if isinstance(order, ServeStore | RelayStore) and order.number > self._last:
            self._last = order.number
            self.store = 0 if isinstance(answer, Failed) else order.generation  # the last one was ended before

    def serve_store(self, generation: int, host: str = "", nodes: Sequence[str] = ()) -> StoreDoor | None:
        """Let the node serve the rendezvous of a generation; return where other nodes reach it, if there are any.

        Args:
            generation: whose ranks meet.
            host: the address of this machine at which other nodes reach it.
            nodes: the public keys of those nodes.

        Raises:
            StateError: it does not.
        """
        return self._meet_in(ServeStore(self._orders.number(), generation, host, [*nodes]))

    def relay_store(self, generation: int, door: StoreDoor) -> None:
        """Let the node lead its ranks to the store of another one.

        Raises:
            StateError: it does not.
        """
        self._meet_in(RelayStore(self._orders.number(), generation, door.address, door.public))

    def open_mirror(self, host: str, nodes: Mapping[int, str]) -> MirrorDoor:
        """Let the daemons of other nodes write on copies of their ranks' pages; return where.

        Args:
            host: the address of the node at which they reach it.
            nodes: their public keys, by number.

        Raises:
            StateError: it does not.
        """
        answer = self._ask(OpenMirror(self._orders.number(), host, {**nodes}))
        if not isinstance(answer, MirrorDoor):
            raise self._refusal(_NO_MIRROR, answer)
        return answer

    def begin_mirror(self, peers: Sequence[MirrorPeer]) -> None:
        """Let what the node's ranks write go to these other nodes, too.

        Raises:
            StateError: it does not.
        """
        answer = self._ask(Mirror(self._orders.number(), [*peers]))
        if not isinstance(answer, Obeyed):
            raise self._refusal(_NO_MIRROR, answer)

    def _ask(self, order: Order) -> Report | None:
        return self._orders.ask(order, over=lambda: bool(self._lost()))

    def _refusal(self, what: str, answer: Report | None) -> StateError:
        return StateError(f"{what}: {self._lost() or f'{why_not(answer)}. Type %distributed heal to mend it.'}")

    def _meet_in(self, order: ServeStore | RelayStore) -> StoreDoor | None:
        answer = self._ask(order)
        if not isinstance(answer, Obeyed | StoreDoor):
            raise self._refusal("The node could not serve the ranks' store", answer)
        return answer if isinstance(answer, StoreDoor) else None

    def serve_store_again(self, generation: int) -> None:
        """Let another daemon serve a store where the last one did; do not wait for it. Any thread may call this."""
        with self._changed:
            under_way = any(isinstance(order, ServeStore) for order in self._orders.open)
        if not under_way and self.store != generation:
            self._orders.give(ServeStore(self._orders.number(), generation))
