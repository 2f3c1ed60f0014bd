"""What a daemon serves of the groups: one generation after the other, whoever dies."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
import zmq

from nbcomm.board_pages import page_of
from nbcomm.node.page_copies import HEAD, NUMBER
from nbcomm.protocol import ServeGroups, Serving

from .nodes import RankKeys, ServedNode
from .test_store import Client

PATIENCE = 30.0


@pytest.fixture
def node() -> Iterator[ServedNode]:
    made = ServedNode()
    yield made
    made.close()


def word(node: ServedNode, rank: int, at: int = 0) -> int:
    """What stands on the copy of a page."""
    return int.from_bytes(page_of(node.home.board, rank).read_bytes()[at : at + 8], "little")


def test_each_generation_has_a_store_and_copies_of_its_own(node: ServedNode) -> None:
    for generation in (1, 2):
        node.serve(generation, ranks=[1])
        client = Client(node.home.store_socket(generation))
        assert client.ask("add", "n", 1) == 1
        assert word(node, 1) == 0
        link = node.connection(1)
        link.send([HEAD.pack(1, generation, 0, 7) + b"block"])
        assert link.receive(PATIENCE) == [NUMBER.pack(1)]
        assert word(node, 1) == 7
        assert node.served.rendezvous.generation == generation
    assert not node.home.store_socket(1).exists()


def test_the_listener_stays_for_the_next_generation(node: ServedNode) -> None:
    node.serve(1, ranks=[1])
    link, before = node.connection(1), node.address
    link.send([HEAD.pack(1, 1, 0, 7)])
    assert link.receive(PATIENCE)
    node.serve(2, ranks=[1])
    assert node.address == before
    link.send([HEAD.pack(2, 2, 0, 8)])
    assert link.receive(PATIENCE) == [NUMBER.pack(2)]
    assert word(node, 1) == 8


def test_an_order_that_comes_again_changes_nothing_and_has_the_same_answer(node: ServedNode) -> None:
    first = node.serve(1, ranks=[1])
    client = Client(node.home.store_socket(1))
    client.ask("set", "key", b"value")
    node.orders = 0
    assert node.serve(1, ranks=[1]) == first
    assert node.served.obey(ServeGroups(0, 9)) == Serving(0, first.address), "an earlier one, sent late"
    assert client.ask("check", ["key"])


def test_who_may_enter_is_told_to_a_daemon_that_serves_already(node: ServedNode) -> None:
    node.serve(1, ranks=[1])
    client = Client(node.home.store_socket(1))
    client.ask("set", "key", b"value")
    node.ranks[1] = RankKeys(1, start=2)
    node.serve(1, ranks=[1], again=True)
    assert client.ask("check", ["key"])
    link = node.connection(1)
    link.send([HEAD.pack(1, 1, 0, 7)])
    assert link.receive(PATIENCE)


def test_another_daemon_goes_on_with_the_copies_that_are_read(node: ServedNode) -> None:
    node.serve(1, ranks=[1])
    reader = page_of(node.home.board, 1).open("rb")
    before = node.address
    node.replace_daemon()
    assert node.serve(1, ranks=[1], again=True).address == before
    link = node.connection(1)
    link.send([HEAD.pack(1, 1, 0, 7)])
    assert link.receive(PATIENCE)
    assert reader.read(8) == (7).to_bytes(8, "little")
    reader.close()


def test_a_port_that_is_taken_is_replaced_by_another(node: ServedNode) -> None:
    node.serve(1, ranks=[1])
    before = node.address
    node.replace_daemon()
    with socket.create_server(("127.0.0.1", int(before.rpartition(":")[2]))):
        assert node.serve(1, ranks=[1], again=True).address not in {"", before}


def test_nothing_of_another_generation_and_no_other_page_is_written(node: ServedNode) -> None:
    node.serve(2, ranks=[1, 2])
    link = node.connection(1)
    for number, generation in ((1, 1), (2, 3)):
        link.send([HEAD.pack(number, generation, 0, 7)])
        assert link.receive(PATIENCE) == [NUMBER.pack(number)], "nobody waits for it"
    assert [word(node, rank) for rank in (1, 2)] == [0, 0]
    link.send([HEAD.pack(3, 2, 0, 7)])
    assert link.receive(PATIENCE)
    assert [word(node, rank) for rank in (1, 2)] == [7, 0]


def test_a_node_without_the_store_refuses_to_be_asked(node: ServedNode) -> None:
    node.serve(1, ranks=[1], store=False)
    link = node.connection(1)
    link.send([b"", b"\x92\xa4meet\x01"])
    assert link.receive(PATIENCE) == [b""]
    assert not node.home.store_socket(1).exists()


@pytest.mark.parametrize("said", [b"", b"\xc1", b"\x90", b"\x91\xa3set", b"\x05"])
def test_garbage_is_refused(node: ServedNode, said: bytes) -> None:
    node.serve(1, ranks=[1])
    link = node.connection(1)
    link.send([b"", b"\x92\xa4meet\x01"])
    assert link.receive(PATIENCE) != [b""]
    link.send([b"", said])
    assert link.receive(PATIENCE) == [b""]


def test_what_a_rank_says_and_cannot_be_done_is_logged_and_holds_up_nobody(
    node: ServedNode, capsys: pytest.CaptureFixture[str]
) -> None:
    node.serve(1, ranks=[1])
    link = node.connection(1)
    link.send([b"short"])
    link.send([HEAD.pack(5, 1, 4, 7) + b"block"])
    assert link.receive(PATIENCE) == [NUMBER.pack(5)]
    node.served.call(lambda: None)  # it answers before it logs
    assert "There is no place 4 for 5 bytes on a page." in capsys.readouterr().err


def test_without_ranks_elsewhere_nobody_listens_for_them(node: ServedNode) -> None:
    before = set(threading.enumerate())
    assert node.served.obey(ServeGroups(1, 1)) == Serving(1, "")
    assert set(threading.enumerate()) == before
    assert Client(node.home.store_socket(1)).ask("count") == 0


def test_an_address_that_is_none_of_this_machine_leaves_no_store(node: ServedNode) -> None:
    node.served.obey(ServeGroups(1, 1))
    with pytest.raises(zmq.ZMQError):
        node.served.obey(ServeGroups(2, 2, address="tcp://192.0.2.1:*"))
    assert node.served.rendezvous.generation == 0
    assert not node.home.store_socket(1).exists()
    assert not node.home.store_socket(2).exists()
    assert node.served.obey(ServeGroups(3, 3)) == Serving(3)


def test_nothing_is_left() -> None:
    before = set(threading.enumerate())
    node = ServedNode()
    node.serve(1, ranks=[1])
    Client(node.home.store_socket(1)).ask("count")
    node.close()
    assert set(threading.enumerate()) <= before
