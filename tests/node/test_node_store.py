"""Where the ranks of a node meet: here, or through the door of another node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq

from nbcomm.node.node_store import NodeStore
from nbcomm.protocol import Obeyed, RelayStore, ServeStore, StoreDoor
from nbcomm.world_dir import WorldDir
from nbcomm.world_info import LinkInfo

from .test_store import Client


class Node:
    """A node with keys and a directory of its own."""

    def __init__(self) -> None:
        self.public, secret = (key.decode() for key in zmq.curve_keypair())
        self.home = WorldDir.create()
        self.store = NodeStore(self.home, LinkInfo("", "", self.public, secret))

    def client(self, generation: int) -> Client:
        return Client(self.home.store_socket(generation))

    def close(self) -> None:
        self.store._open.close()
        self.home.remove()


@pytest.fixture
def nodes() -> Iterator[tuple[Node, Node]]:
    made = Node(), Node()
    yield made
    for node in made:
        node.close()


def door_of(answer: object) -> StoreDoor:
    assert isinstance(answer, StoreDoor)
    return answer


def test_all_nodes_meet_in_one_store_of_each_generation(nodes: tuple[Node, Node]) -> None:
    head, other = nodes
    for generation in (1, 2):
        door = door_of(head.store.obey(ServeStore(10 * generation, generation, "127.0.0.1", [other.public])))
        relay = RelayStore(10 * generation + 1, generation, door.address, door.public)
        assert other.store.obey(relay) == Obeyed(relay.number)
        assert head.store.generation == other.store.generation == generation
        assert head.client(generation).ask("add", "n", 1) == 1
        assert other.client(generation).ask("add", "n", 1) == 2
    for node in nodes:
        assert not node.home.store_socket(1).exists()


def test_an_order_that_comes_again_changes_nothing_and_has_the_same_answer(nodes: tuple[Node, Node]) -> None:
    head, other = nodes
    order = ServeStore(5, 1, "127.0.0.1", [other.public])
    first = head.store.obey(order)
    head.client(1).ask("set", "key", b"value")
    assert head.store.obey(order) == first
    door = door_of(first)
    relay = RelayStore(6, 1, door.address, door.public)
    for _ in range(2):
        assert other.store.obey(relay) == Obeyed(6)
        assert other.client(1).ask("wait", ["key"], 0.0) == [b"value"]
    assert head.store.obey(ServeStore(4, 9)) == StoreDoor(4, door.address, door.public), "an earlier one, sent late"
    assert head.store.generation == 1


def test_without_other_nodes_there_is_no_door(nodes: tuple[Node, Node]) -> None:
    head, _ = nodes
    assert head.store.obey(ServeStore(1, 1)) == Obeyed(1)
    assert head.client(1).ask("count") == 0


def test_a_door_that_cannot_be_opened_leaves_no_store(nodes: tuple[Node, Node]) -> None:
    head, other = nodes
    head.store.obey(ServeStore(1, 1))
    with pytest.raises(zmq.ZMQError):
        head.store.obey(ServeStore(2, 2, "192.0.2.1", [other.public]))
    assert head.store.generation == 0
    assert not head.home.store_socket(1).exists()
    assert not head.home.store_socket(2).exists()
    assert head.store.obey(ServeStore(3, 3)) == Obeyed(3)
