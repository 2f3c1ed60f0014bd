"""Where the ranks of this node meet: in the store of its own daemon, or on the way to another daemon's."""

from __future__ import annotations

from contextlib import ExitStack

from ..protocol import Obeyed, RelayStore, Report, ServeStore, StoreDoor
from ..world_dir import WorldDir
from ..world_info import LinkInfo
from . import store_relay
from .store import StoreServer


class NodeStore:
    """The store of one generation after the other.

    Args:
        home: the node's directory.
        link: has the node's keys.

    Attributes:
        generation: whose ranks meet there; 0 if none do.
    """

    def __init__(self, home: WorldDir, link: LinkInfo) -> None:
        self.generation = 0
        self._home = home
        self._link = link
        self._order = 0
        self._open = ExitStack()
        self._door: store_relay.StoreDoor | None = None

    def obey(self, order: ServeStore | RelayStore) -> Report:
        """Let the ranks of another generation meet; return the answer.

        Raises:
            OSError: the socket cannot be made; nobody meets then.
            zmq.ZMQError: so it is with the door.
        """
        # Else its answer was lost, or it is an earlier one: ranks may meet there already.
        if order.number > self._order:
            self._open.close()
            self.generation, self._door = 0, None
            self._home.forget_stores(but=order.generation)  # before: where no further file can be made, each counts
            with ExitStack() as opened:
                self._begin(order, opened)
                self._open = opened.pop_all()
            self._order, self.generation = order.number, order.generation
        if self._door is not None:
            return StoreDoor(order.number, self._door.address, self._door.public)
        return Obeyed(order.number)

    def _begin(self, order: ServeStore | RelayStore, opened: ExitStack) -> None:
        path = self._home.store_socket(order.generation)
        if isinstance(order, RelayStore):
            opened.callback(store_relay.StoreRelay(path, order.address, order.public, self._link).close)
            return
        opened.callback(StoreServer(path).close)
        if order.host:
            self._door = store_relay.StoreDoor(path, order.host, order.nodes)
            opened.callback(self._door.close)
