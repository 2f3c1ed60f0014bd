"""A rank's end of page replication: what it writes on its page goes to copies on other nodes; see `node.page_copies`.

A rank has a connection to the daemon of each other node. If one breaks, it is made again, and meanwhile calls are not
compared with that node's ranks.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence

from ...node.dealers import Connection
from ...node.page_copies import HEAD, NUMBER
from ...protocol import Listener

_PATIENCE = 1.0
"""Seconds that a copy may take; it takes a round trip. After that nobody waits for this node until it answers again."""

_PAUSE = 0.1
"""Seconds between two tries to reach a node."""

Connect = Callable[[Listener], Connection]


class PageReplication:
    """The connections to other nodes' daemons."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nodes: dict[int, _Node] = {}
        self._generation = 0
        self._numbers = itertools.count(1)

    def begin(self, generation: int, listeners: Sequence[Listener], connect: Connect | None) -> None:
        """Copy to these nodes from now on.

        Args:
            generation: of the groups.
            listeners: those of the nodes.
            connect: makes a connection; None if there are no listeners.
        """
        with self._lock:
            self._generation = generation
            kept = {node.to: node for node in self._nodes.values() if node.is_well}
            for node in self._nodes.values():
                if node not in kept.values() or node.to not in listeners:
                    node.close()
            self._nodes = {to.node: kept.get(to) or _Node(to, connect) for to in listeners if connect is not None}

    def works(self, node: int) -> bool:
        """Return whether what is shown to a node arrives there, as far as is known."""
        return node in self._nodes and self._nodes[node].is_well

    def show(self, nodes: Sequence[int], at: int, word: int, block: bytes, *, wait: bool) -> None:
        """Have a word and the block behind it copied to these nodes.

        Args:
            nodes: their numbers.
            at: where on the page, in bytes.
            word: 64 bits.
            block: what stands behind it.
            wait: return when it is there.
        """
        with self._lock:
            number = next(self._numbers) if wait else 0
            said = HEAD.pack(number, self._generation, at, word) + block
            there = [self._nodes[node] for node in nodes if node in self._nodes]
            sent = [node for node in there if node.send(said)]
            if wait:
                until = time.monotonic() + _PATIENCE
                for node in sent:
                    node.wait(number, until)

    def leave(self) -> None:
        """Leave the connections to the parent, in the child of a fork; nothing is shown any more."""
        self._lock = threading.Lock()  # a thread that no longer exists may hold the other one
        self._nodes = {}


class _Node:
    """The connection to one node, and how far it has answered."""

    def __init__(self, to: Listener, connect: Connect) -> None:
        self.to = to
        self._connect = connect
        self._answered = 0
        self._silent = False
        self._again = 0.0
        self._came = False  # whether this node has ever let this rank in
        self._connection: Connection | None = connect(to)

    @property
    def is_well(self) -> bool:
        """Whether what is sent arrives, as far as is known."""
        return self._connection is not None and self._takes(self._connection) and not self._silent

    def _takes(self, connection: Connection) -> bool:
        # The first words wait for the node, which knows this rank already; after a break they would be late.
        return not connection.lost and (connection.connected or not self._came)

    def send(self, said: bytes) -> bool:
        """Send, if the node is there; return whether its answer is worth a wait."""
        connection = self._present()
        if connection is None or not self._takes(connection):
            return False
        try:
            connection.send([said])
            if self._silent:
                self._hear(connection, 0.0)
        except ConnectionError:
            return False
        return not self._silent

    def wait(self, number: int, until: float) -> None:
        """Wait until the node has answered up to a number."""
        connection = self._connection
        while connection is not None and self._answered < number:
            try:
                if not self._hear(connection, max(0.0, until - time.monotonic())):
                    self._silent = True
                    return
            except ConnectionError:
                return

    def _hear(self, connection: Connection, patience: float) -> bool:
        """Take an answer, if one comes in time."""
        frames = connection.receive(patience)
        if frames is None:
            return False
        self._answered = max(self._answered, NUMBER.unpack(frames[0])[0])
        self._silent = False
        return True

    def _present(self) -> Connection | None:
        """Return the connection; in the place of one that is lost another one, which is not there at once."""
        connection = self._connection
        if connection is not None and connection.look():
            self._came |= connection.connected
            return connection
        self.close()
        if time.monotonic() >= self._again:
            self._again = time.monotonic() + _PAUSE
            self._connection, self._came = self._connect(self.to), True
        return self._connection

    def close(self) -> None:
        """Let go of the connection."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()
