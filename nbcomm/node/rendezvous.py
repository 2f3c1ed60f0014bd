"""What a node's daemon does for the groups of ranks: where they meet, and what they see of ranks on other nodes.

Ranks of the node meet in the store at a Unix socket, and those of others through the `NodeListener`, where they also
say what is to be written on the copies of their pages. All of it belongs to one generation of the groups. The next one
begins with an empty store and empty copies, and what a rank says of an earlier one is not taken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import zmq

from ..faults import Faults
from ..protocol import ServeGroups, Serving
from ..protocol.nodes import rank_named
from ..world_dir import WorldDir
from ..world_info import LinkInfo
from .listener import NodeListener
from .page_copies import NUMBER, PageCopies
from .store import REFUSED, Store, StoreServer, from_bytes, to_bytes


class Rendezvous:
    """One generation after the other.

    Args:
        home: the node's directory.
        link: has the node's keys.
        poller: is told what to watch.
        faults: logs what goes wrong beside the work.

    Attributes:
        generation: the present one; 0 if there is none.
    """

    def __init__(self, home: WorldDir, link: LinkInfo, poller: zmq.Poller, faults: Faults) -> None:
        self.generation = 0
        self._home = home
        self._link = link
        self._poller = poller
        self._faults = faults
        self._order = 0
        self._store: Store | None = None
        self._server: StoreServer | None = None
        self._listener: NodeListener | None = None
        self._copies: PageCopies | None = None
        self._met: set[bytes] = set()  # connections of ranks that have met the present store

    @property
    def address(self) -> str:
        """Where ranks of other nodes reach this one; empty if none do."""
        return self._listener.address if self._listener is not None else ""

    def obey(self, order: ServeGroups) -> Serving:
        """Serve another generation; return the answer.

        Raises:
            OSError: a socket or the copies of pages cannot be made; nobody meets then.
            zmq.ZMQError: this machine has no such address.
        """
        # Else its answer was lost, or it is an earlier one: ranks may meet there already.
        if order.number > self._order:
            if not (order.again and order.generation == self.generation):
                self.end()
                self._home.forget_stores(but=order.generation)  # before: where no further file can be made, each counts
                self._begin(order)
            if self._listener is not None:
                self._listener.let_in(order.ranks)
            self._order, self.generation = order.number, order.generation
        return Serving(order.number, self.address)

    def _begin(self, order: ServeGroups) -> None:
        if self._listener is not None and not self._listener.is_at(order.address):
            self._close_listener()
        if order.address and self._listener is None:
            self._listener = NodeListener(order.address, self._link)
            self._poller.register(self._listener.socket, zmq.POLLIN)
        if order.pages:
            self._copies = PageCopies(self._home, order.generation, order.pages, again=order.again)
        if order.store:
            store = Store()
            self._server = StoreServer(self._home.store_socket(order.generation), store)
            self._store = store
            self._poller.register(self._server.fileno(), zmq.POLLIN)

    def end(self) -> None:
        """Serve the present generation no more; the listener stays for the next one."""
        self.generation = 0
        self._copies = self._store = None
        self._met.clear()
        if self._server is not None:
            server, self._server = self._server, None
            self._poller.unregister(server.fileno())
            server.close()

    def close(self) -> None:
        """Serve nobody any more."""
        self.end()
        self._close_listener()

    def _close_listener(self) -> None:
        if self._listener is not None:
            listener, self._listener = self._listener, None
            self._poller.unregister(listener.socket)
            listener.close()

    # ── the loop ────────────────────────────────────────────────────────────────────────────────────

    @property
    def due(self) -> float:
        """When there is something to do at the latest, by `time.monotonic`."""
        return self._store.due if self._store is not None else math.inf

    def serve(self, ready: Mapping[Any, int]) -> None:
        """Handle what has come, and answer those who have waited for too long.

        Raises:
            OSError: a rank cannot connect just now.
        """
        if self._listener is not None and self._listener.socket in ready:
            self._hear(self._listener)
        if self._server is not None and self._server.fileno() in ready:
            self._server.serve()
        if self._store is not None:
            self._store.give_up()

    def _hear(self, listener: NodeListener) -> None:
        for name, connection, frames in listener.receive():
            with self._faults.beside("what a rank of another node has said could not be done"):
                if len(frames) == 1:  # it is kept short: calls wait for it
                    self._copy(listener, connection, rank_named(name), frames[0].bytes)
                else:
                    self._ask(listener, connection, frames[1].bytes)

    def _ask(self, listener: NodeListener, connection: bytes, request: bytes) -> None:
        """Ask the store for a rank of another node."""
        answer = partial(listener.send, connection)
        try:
            asked = from_bytes(request)
            if self._store is not None and asked == ["meet", self.generation]:
                self._met.add(connection)
                answer(to_bytes(self._store.name))
            elif self._store is not None and connection in self._met:
                self._store.ask(asked, connection, lambda value: answer(to_bytes(value)))
            else:
                answer(REFUSED)
        except Exception:  # noqa: BLE001 - it may have said anything; its own call fails
            answer(REFUSED)

    def _copy(self, listener: NodeListener, connection: bytes, rank: int, said: bytes) -> None:
        number = NUMBER.unpack_from(said)[0]
        try:
            if self._copies is not None:
                self._copies.write(rank, said)
        finally:  # nobody waits for what cannot be written
            if number:
                listener.send(connection, NUMBER.pack(number))
