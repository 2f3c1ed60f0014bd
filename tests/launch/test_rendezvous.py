"""Which node serves what, and what another daemon gets; the nodes are played here."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator

import pytest

from nbcomm.launch.orders import Orders
from nbcomm.launch.rendezvous import Rendezvous
from nbcomm.launch.served import Served
from nbcomm.protocol import Listener, NodeHello, Order, ServeGroups, Serving


class Node:
    """A node whose daemon obeys at once."""

    def __init__(self, number: int, numbers: Iterator[int]) -> None:
        self.number = number
        self.lost = ""
        self.port = 1000 + number
        self.got: list[ServeGroups] = []
        self.is_deaf = False
        changed = threading.Condition(threading.RLock())
        self.orders = Orders(self._obey, numbers, changed)
        self.served = Served(self.orders, changed, lambda: self.lost)

    def _obey(self, order: Order) -> None:
        assert isinstance(order, ServeGroups)
        self.got.append(order)
        if not self.is_deaf:
            address = order.address.replace("*", str(self.port))
            answer = Serving(order.number, address)
            self.served.note(self.orders.note(order.number, answer), answer)

    def replace_daemon(self) -> None:
        self.served.meet(NodeHello(2, 0))


class Nodes:
    """Some nodes with two ranks each."""

    def __init__(self, count: int) -> None:
        numbers = itertools.count(1)
        self.all = [Node(number, numbers) for number in range(count)]
        self.compares = True
        self.are_reached_by_ssh_alone = False
        self.without_ranks: set[int] = set()
        self.rendezvous = Rendezvous(self)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Node]:
        return iter(self.all)

    def ranks(self, node: Node) -> list[int]:
        return [] if node.number in self.without_ranks else [2 * node.number, 2 * node.number + 1]

    def keys(self, ranks: Iterable[int]) -> dict[str, str]:
        return {f"key {rank}": f"rank{rank}-1" for rank in ranks}

    def key(self, node: Node) -> str:
        return f"key of {node.number}"

    def address(self, node: Node) -> str:
        return f"10.0.0.{node.number}"


def test_one_node_serves_the_store_and_does_not_listen() -> None:
    nodes = Nodes(1)
    nodes.rendezvous.serve(1)
    (order,) = nodes.all[0].got
    assert order == ServeGroups(order.number, 1)
    assert nodes.rendezvous.generation == 1
    assert nodes.rendezvous.listeners() == []


def test_the_head_has_the_store_and_each_node_hears_the_ranks_of_all_others() -> None:
    nodes = Nodes(3)
    nodes.rendezvous.serve(1)
    orders = [node.got[0] for node in nodes]
    assert [order.store for order in orders] == [True, False, False]
    assert [order.address for order in orders] == [f"tcp://10.0.0.{number}:*" for number in range(3)]
    assert [order.pages for order in orders] == [[2, 3, 4, 5], [0, 1, 4, 5], [0, 1, 2, 3]]
    assert orders[1].ranks == nodes.keys([0, 1, 4, 5])
    assert nodes.rendezvous.listeners()[2] == Listener(2, "tcp://10.0.0.2:1002", "key of 2")


def test_where_calls_are_not_compared_only_the_store_is_reached() -> None:
    nodes = Nodes(2)
    nodes.compares = False
    nodes.rendezvous.serve(1)
    assert [(order.address, order.pages) for node in nodes for order in node.got] == [
        ("tcp://10.0.0.0:*", []),
        ("", []),
    ]
    assert [listener.node for listener in nodes.rendezvous.listeners()] == [0]


def test_a_head_without_ranks_needs_no_copies() -> None:
    nodes = Nodes(3)
    nodes.without_ranks = {0}
    nodes.rendezvous.serve(1)
    assert [node.got[0].pages for node in nodes] == [[], [4, 5], [2, 3]]


def test_with_tunnels_the_first_other_node_has_the_store() -> None:
    nodes = Nodes(3)
    nodes.are_reached_by_ssh_alone = True
    nodes.rendezvous.serve(1)
    assert nodes.all[0].got == []
    assert nodes.rendezvous.store == 1
    assert [node.got[0].store for node in nodes.all[1:]] == [True, False]
    nodes.all[1].lost = "does not answer"
    assert nodes.rendezvous.generation == 0, "the ranks look there"
    assert not nodes.rendezvous.serve_again(1)


@pytest.mark.parametrize("which", [0, 1])
def test_the_next_daemon_gets_the_same_table_for_the_same_place(which: int) -> None:
    nodes = Nodes(2)
    nodes.rendezvous.serve(1)
    assert nodes.rendezvous.serve_again(1)
    node = nodes.all[which]
    assert len(node.got) == 1, "nothing was missing"
    node.replace_daemon()
    assert nodes.rendezvous.generation == (0 if which == 0 else 1)
    assert nodes.rendezvous.serve_again(1)
    first, again = node.got
    assert again == ServeGroups(
        again.number, 1, first.store, f"tcp://10.0.0.{which}:{1000 + which}", first.ranks, first.pages, again=True
    )
    assert nodes.rendezvous.generation == 1


def test_it_is_seen_quickly_that_nothing_is_missing() -> None:
    nodes = Nodes(2)
    assert not nodes.rendezvous.is_whole(1)
    nodes.rendezvous.serve(1)
    assert nodes.rendezvous.is_whole(1)
    assert not nodes.rendezvous.is_whole(2)
    nodes.all[1].lost = "does not answer"
    assert not nodes.rendezvous.is_whole(1)
    nodes.all[1].lost = ""
    nodes.all[1].replace_daemon()
    assert not nodes.rendezvous.is_whole(1)
    assert nodes.rendezvous.serve_again(1)
    assert nodes.rendezvous.is_whole(1)
    nodes.all[1].served.meet(NodeHello(3, 1, "tcp://10.0.0.1:7"))
    assert not nodes.rendezvous.is_whole(1), "its ranks were told another address"


def test_an_order_that_is_under_way_is_not_given_once_more() -> None:
    nodes = Nodes(2)
    nodes.rendezvous.serve(1)
    node = nodes.all[1]
    node.replace_daemon()
    node.is_deaf = True
    assert nodes.rendezvous.serve_again(1)
    assert nodes.rendezvous.serve_again(1)
    assert len(node.got) == 2


@pytest.mark.parametrize("which", [0, 1])
def test_a_daemon_that_listens_elsewhere_is_told_to_nobody(which: int) -> None:
    nodes = Nodes(2)
    nodes.rendezvous.serve(1)
    node = nodes.all[which]
    node.replace_daemon()
    node.served.meet(NodeHello(3, 1, "tcp://10.0.0.9:9"))
    assert not nodes.rendezvous.serve_again(1)
    assert nodes.rendezvous.generation == (0 if which == 0 else 1)


def test_another_notebook_learns_from_the_daemons_what_the_ranks_were_told() -> None:
    nodes = Nodes(2)
    for node in nodes:
        node.served.meet(NodeHello(1, 4, f"tcp://10.0.0.{node.number}:7"))
    assert nodes.rendezvous.generation == 4
    assert nodes.rendezvous.serve_again(4)
    nodes.all[1].replace_daemon()
    assert nodes.rendezvous.serve_again(4)
    assert nodes.all[1].got[0].address == "tcp://10.0.0.1:7"


def test_where_nobody_knows_what_the_ranks_were_told_the_groups_are_formed_again() -> None:
    nodes = Nodes(2)
    nodes.all[1].served.meet(NodeHello(1, 4, "tcp://10.0.0.1:7"))
    assert nodes.rendezvous.generation == 0
    assert not nodes.rendezvous.serve_again(4)


def test_a_node_that_is_lost_takes_no_part() -> None:
    nodes = Nodes(3)
    nodes.rendezvous.serve(1)
    nodes.all[2].lost = "does not answer"
    assert nodes.rendezvous.generation == 1
    assert nodes.rendezvous.serve_again(1)
    nodes.rendezvous.serve(2)
    assert len(nodes.all[2].got) == 1
    assert [listener.node for listener in nodes.rendezvous.listeners()] == [0, 1]
