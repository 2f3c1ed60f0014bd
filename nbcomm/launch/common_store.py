"""The store in which the ranks of all nodes meet, and the board on which they see what the others are about to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from ..protocol import MirrorPeer
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

    def key(self, node: NodeClient) -> str:
        """Return a node's public key."""

    def address(self, node: NodeClient) -> str:
        """Return the address at which other nodes reach one."""


class CommonStore:
    """The store of one generation after the other: the daemon of the first node has it, and the others lead to it.

    Args:
        nodes: all of them.
    """

    def __init__(self, nodes: AllNodes) -> None:
        self._nodes = nodes

    @property
    def generation(self) -> int:
        """The generation whose ranks can meet now, whichever node they are on; 0 if there is none."""
        served = {node.meeting.store for node in self._meeting()}
        return served.pop() if len(served) == 1 else 0

    def serve(self, generation: int) -> None:
        """Let the ranks of a generation meet.

        Raises:
            StateError: a node does not do its part.
        """
        nodes = self._nodes
        first, *others = self._meeting()
        if len(list(nodes)) == 1:
            first.meeting.serve_store(generation)
            return
        door = first.meeting.serve_store(generation, nodes.address(first), [nodes.key(node) for node in others])
        assert door is not None  # noqa: S101 - for mypy
        for node in others:
            node.meeting.relay_store(generation, door)
        if nodes.compares:
            self._mirror()

    def _meeting(self) -> list[NodeClient]:
        """Return the nodes whose ranks can meet, with the one first whose daemon has the store."""
        head, *others = self._nodes
        living = [node for node in others if not node.lost]
        return living if self._nodes.are_reached_by_ssh_alone and living else [head, *living]

    def _mirror(self) -> None:
        """Let the ranks of all nodes see what the others are about to do."""
        nodes = self._nodes
        ranks = {node.number: nodes.ranks(node) for node in nodes}
        having = [node for node in nodes if ranks[node.number] and not node.lost]
        doors = {}
        for node in having:
            others = {other.number: nodes.key(other) for other in having if other is not node}
            doors[node.number] = node.meeting.open_mirror(nodes.address(node), others)
        peers = [MirrorPeer(number, door.address, door.public, ranks[number]) for number, door in doors.items()]
        for node in having:
            node.meeting.begin_mirror([peer for peer in peers if peer.node != node.number])
