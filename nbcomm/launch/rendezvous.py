"""Where the ranks of a generation meet, and see what those of other nodes are about to do.

Which node has the store, where each listens, and which ranks may enter is a table. Its part for a node is one order,
which is given again to each next daemon of that node. A daemon tells what it serves when it says hello, so what the
ranks have been told is compared with what is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from ..protocol import Listener, ServeGroups
from ..protocol.nodes import HEAD
from .node_client import NodeClient


class AllNodes(Protocol):
    """The nodes of a world, the head first."""

    compares: bool
    """Whether calls of ranks on different nodes are compared."""

    @property
    def are_reached_by_ssh_alone(self) -> bool:
        """Whether the others cannot reach the head."""

    def __iter__(self) -> Iterator[NodeClient]: ...

    def ranks(self, node: NodeClient) -> list[int]:
        """Return the ranks of a node."""

    def keys(self, ranks: Iterable[int]) -> dict[str, str]:
        """Return the names of the present processes of ranks, by their public keys."""

    def key(self, node: NodeClient) -> str:
        """Return a node's public key."""

    def address(self, node: NodeClient) -> str:
        """Return the address at which other nodes reach one."""


class Rendezvous:
    """The store and the copies of pages of one generation after the other.

    Args:
        nodes: all of them.

    Attributes:
        store: the number of the node that has the store.
    """

    def __init__(self, nodes: AllNodes) -> None:
        self.store = HEAD
        self._nodes = nodes
        self._told: dict[int, str] = {}  # by node, the address that ranks have been told last

    @property
    def generation(self) -> int:
        """The generation whose ranks can meet now, whichever node they are on; 0 if there is none."""
        first = self._meeting()[0]
        told = self._told.get(first.number, first.served.address)
        is_there = told == first.served.address and (first.number == self.store or not self._told)
        return first.served.generation if is_there else 0

    def listeners(self) -> list[Listener]:
        """Return where the nodes listen for each other's ranks."""
        nodes = self._nodes
        told = [node for node in nodes if self._told.get(node.number)]
        return [Listener(node.number, self._told[node.number], nodes.key(node)) for node in told]

    def serve(self, generation: int) -> None:
        """Let the ranks of a generation meet.

        Raises:
            StateError: a node does not do its part.
        """
        meeting = self._meeting()
        self.store = meeting[0].number
        for node in meeting:
            node.served.serve(self._order(node, meeting, generation))
        self._told = {node.number: node.served.address for node in meeting}

    def is_whole(self, generation: int) -> bool:
        """Return whether each node serves a generation where its ranks were told: seen before each cell, so quickly."""
        for node in self._nodes:
            served = node.served
            if node.lost or served.generation != generation or served.address != self._told.get(node.number):
                return False
        return True

    def serve_again(self, generation: int) -> bool:
        """Let other daemons serve a generation where the last ones did; do not wait for it. Any thread may call this.

        Returns:
            Whether that can be done: not where ranks of other nodes look elsewhere.
        """
        meeting = self._meeting()
        if not self._told:
            self.store = meeting[0].number
        elif meeting[0].number != self.store:
            return False
        for node in meeting:
            served, told = node.served, self._told.get(node.number)
            if served.generation == generation:
                if told is None:  # another notebook has told them
                    self._told[node.number] = served.address
                elif told != served.address:
                    return False
            elif told is None and len(meeting) > 1:
                return False
            else:
                served.give(self._order(node, meeting, generation, again=True))
        return True

    def _order(
        self, node: NodeClient, meeting: list[NodeClient], generation: int, *, again: bool = False
    ) -> ServeGroups:
        nodes = self._nodes
        has_store = node is meeting[0]
        if len(meeting) == 1 or not (has_store or nodes.compares):
            return node.served.order(generation, store=has_store, again=again)
        others = [rank for other in meeting if other is not node for rank in nodes.ranks(other)]
        return node.served.order(
            generation,
            store=has_store,
            address=self._told.get(node.number) or f"tcp://{nodes.address(node)}:*",
            ranks=nodes.keys(others),
            pages=others if nodes.compares and nodes.ranks(node) else (),
            again=again,
        )

    def _meeting(self) -> list[NodeClient]:
        """Return the nodes whose ranks can meet, with the one first whose daemon has the store."""
        head, *others = self._nodes
        living = [node for node in others if not node.lost]
        return living if self._nodes.are_reached_by_ssh_alone and living else [head, *living]
