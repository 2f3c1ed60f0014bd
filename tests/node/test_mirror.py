"""The board between two nodes: two mirrors in one process, and ranks that say what they write."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import zmq

from nbcomm.board_pages import PAGE, SLOTS, make_page, page_of
from nbcomm.node import dealers
from nbcomm.node.mirror import DONE, WORD, Mirror
from nbcomm.node.mirrors import Mirrors
from nbcomm.protocol import Mirror as MirrorOrder
from nbcomm.protocol import MirrorDoor, MirrorPeer, Obeyed, OpenMirror
from nbcomm.rank.collectives import mirror_end
from nbcomm.rank.collectives.fingerprints import FingerprintBoard, entry
from nbcomm.rank.collectives.mirror_end import MirrorEnd
from nbcomm.world_dir import WorldDir
from nbcomm.world_info import LinkInfo

from .served import await_that
from .test_store_relay import Network

PATIENCE = 30.0
SUM, PROD = entry(1, "all_reduce(sum)"), entry(2, "all_reduce(prod)")


class Node:
    """A node with one rank, which is this process, and its mirror."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.public, secret = (key.decode() for key in zmq.curve_keypair())
        self.home = WorldDir.create()
        self.info = LinkInfo("", "", self.public, secret)
        self.home.write_link(self.info)

    def open(self, *others: Node) -> Mirror:
        keys = {other.number: other.public for other in others}
        self.mirror = Mirror(self.home, self.info, "127.0.0.1", keys, lambda _: self.number)
        return self.mirror

    def peer(self, address: str = "") -> MirrorPeer:
        return MirrorPeer(self.number, address or self.mirror.address, self.mirror.public, [self.number])

    def board(self) -> FingerprintBoard:
        """The rank's, whose number is the node's."""
        self.end = MirrorEnd(self.home.mirror_socket)
        board = FingerprintBoard(self.home.board, self.number, self.end)
        board.meet([0, 1], [0, 1])
        return board

    def close(self) -> None:
        self.mirror.close()
        self.home.remove()


class Pair:
    """Two nodes that mirror each other, with a network from the first to the second."""

    def __init__(self) -> None:
        self.nodes = Node(0), Node(1)
        first, second = self.nodes
        first.open(second)
        second.open(first)
        self.network = Network(second.mirror.address)
        first.mirror.begin([second.peer(self.network.address)])
        second.mirror.begin([first.peer()])
        self.boards = [node.board() for node in self.nodes]

    def close(self) -> None:
        self.network.close()
        for node in self.nodes:
            node.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


def test_the_later_of_two_sees_what_the_earlier_does_on_another_node(pair: Pair) -> None:
    first, second = pair.boards
    for position in range(2 * SLOTS):
        assert list(first.compare(0, 7, position, SUM, first.seen([1]))) == []
        assert list(second.compare(0, 7, position, SUM if position % 2 else PROD, second.seen([0]))) == (
            [] if position % 2 else [0]
        )
    assert second.text(0, 0, 7, 2 * SLOTS - 1) == "all_reduce(sum)"


def test_of_two_that_differ_at_the_same_time_one_sees_it(pair: Pair) -> None:
    first, second = pair.boards
    for position in range(200):
        seen: list[list[int]] = []

        def differ(position: int = position, seen: list[list[int]] = seen) -> None:
            seen.append([*second.compare(0, 7, position, PROD, second.seen([0]))])

        other = threading.Thread(target=differ)
        other.start()
        seen.append([*first.compare(0, 7, position, SUM, first.seen([1]))])
        other.join()
        assert [] != sorted(seen) != [[], []], position


def test_what_the_cell_called_comes_too(pair: Pair) -> None:
    first, second = pair.boards
    from nbcomm.rank.collectives.fingerprints import place

    first.put_place(7, 1, place("all_reduce, line 3"))
    await_that(lambda: second.place_of(0, 7, 1) == "all_reduce, line 3", "it does not come")


def test_messages_are_compared_between_nodes(pair: Pair) -> None:
    first, second = pair.boards
    assert first.is_shown_to(1)
    assert list(first.compare(1, 9, 1, SUM, first.seen([1]).of(1, 1))) == []
    assert second.text(0, 1, 9, 1) == "all_reduce(sum)"
    assert list(second.compare(1, 9, 1, PROD, second.seen([0]).of(0, 0))) == [0]


def test_where_all_are_on_one_node_nothing_is_said(pair: Pair) -> None:
    pair.nodes[0].mirror.close()
    first = pair.boards[0]
    assert list(first.compare(0, 7, 1, SUM, first.seen([]))) == []
    assert pair.nodes[0].end.works


@pytest.mark.parametrize("end", ["agent", "other agent"])
def test_an_agent_that_ends_costs_the_comparison_and_nothing_else(pair: Pair, end: str) -> None:
    first = pair.boards[0]
    assert list(first.compare(0, 7, 1, SUM, first.seen([1]))) == []
    pair.nodes[0 if end == "agent" else 1].mirror.close()
    for position in (2, 3):
        began = time.monotonic()
        assert list(first.compare(0, 7, position, SUM, first.seen([1]))) == []
        assert time.monotonic() - began < PATIENCE
    if end == "agent":
        assert not first.is_shown_to(1), "messages are announced in the store then"


def test_a_network_that_breaks_frees_who_waits_and_mends(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_end, "_PATIENCE", PATIENCE)
    first, second = pair.boards
    assert list(first.compare(0, 7, 1, SUM, first.seen([1]))) == []
    pair.network.silent = True
    waiting = threading.Thread(target=lambda: first.compare(0, 7, 2, SUM, first.seen([1])))
    waiting.start()
    pair.network.cut()
    waiting.join(PATIENCE)
    assert not waiting.is_alive()
    pair.network.mend()

    def arrives() -> bool:
        first.compare(0, 7, 3, SUM, first.seen([1]))
        return second.text(0, 0, 7, 3) == "all_reduce(sum)"

    await_that(arrives, "it does not mend")


def test_who_gets_no_answer_goes_on_after_its_patience(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_end, "_PATIENCE", 0.1)
    monkeypatch.setattr(dealers, "_SILENCE", 600_000)
    first = pair.boards[0]
    pair.network.silent = True
    assert list(first.compare(0, 7, 1, SUM, first.seen([1]))) == []
    assert not first.is_shown_to(1)
    first.meet([0, 1], [0, 1])
    assert first.is_shown_to(1), "the groups are formed again"


def test_an_interrupt_while_it_waits_does_not_mix_up_answers(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    first, end = pair.boards[0], pair.nodes[0].end
    assert list(first.compare(0, 7, 1, SUM, first.seen([1]))) == []
    connection = end._socket
    assert connection is not None

    class Interrupting:
        def __getattr__(self, name: str) -> object:
            return getattr(connection, name)

        def recv(self, _: int) -> bytes:
            raise KeyboardInterrupt

    end._socket = Interrupting()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        first.compare(0, 7, 2, SUM, first.seen([1]))
    assert end._socket is None
    assert list(first.compare(0, 7, 3, SUM, first.seen([1]))) == []
    assert end.works


# ── who may write what ──────────────────────────────────────────────────────────────────────────────


def test_a_node_writes_only_the_pages_of_its_own_ranks(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = pair.nodes
    with suppress(OSError), socket.socket(socket.AF_UNIX) as liar:
        liar.settimeout(PATIENCE)
        first.mirror._rank_of = lambda _: 5  # what the other node does not know as its rank
        liar.connect(os.fspath(first.home.mirror_socket))
        liar.sendall(WORD.pack(True, 1, 1, 0, 3) + (1).to_bytes(2, "little") + b"x")
        assert liar.recv(1) == DONE
    assert "KeyError" in capsys.readouterr().err
    assert not page_of(second.home.board, 5).exists()


@pytest.mark.parametrize("at", [4, PAGE, PAGE - 8, 1 << 31])
def test_nothing_is_written_beside_the_page(pair: Pair, capsys: pytest.CaptureFixture[str], at: int) -> None:
    first, second = pair.boards
    pair.nodes[0].end.show([1], at, 3, b"x" * 16, wait=True)
    assert "There is no place" in capsys.readouterr().err
    assert list(first.compare(0, 7, 1, SUM, first.seen([1]))) == []
    assert second.text(0, 0, 7, 1) == "all_reduce(sum)"


def test_a_process_that_is_no_rank_is_not_heard(pair: Pair) -> None:
    first = pair.nodes[0]
    first.mirror._rank_of = lambda _: None
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.settimeout(PATIENCE)
        stranger.connect(os.fspath(first.home.mirror_socket))
        assert stranger.recv(1) == b""


def test_a_stranger_is_not_let_in(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    node = Node(2)
    node.open(pair.nodes[1])
    node.mirror.begin([pair.nodes[1].peer()])
    MirrorEnd(node.home.mirror_socket).show([1], 0, 3, b"", wait=True)
    assert list(pair.boards[0].compare(0, 7, 1, SUM, pair.boards[0].seen([1]))) == []
    assert "Error" not in capsys.readouterr().err, "else it would have been heard, and have no page there"
    node.close()


# ── one generation after the other ──────────────────────────────────────────────────────────────────


def test_orders_open_and_begin_it_and_nothing_twice() -> None:
    nodes = Node(0), Node(1)
    mirrors = [Mirrors(node.home, lambda _, node=node: node.number) for node in nodes]
    for generation in (1, 3):
        doors = []
        for number, one in enumerate(mirrors):
            order = OpenMirror(generation, "127.0.0.1", {1 - number: nodes[1 - number].public})
            door = one.obey(order)
            assert isinstance(door, MirrorDoor)
            assert one.obey(order) == door
            doors.append(door)
        for number, one in enumerate(mirrors):
            there = doors[1 - number]
            begin = MirrorOrder(generation + 1, [MirrorPeer(1 - number, there.address, there.public, [1 - number])])
            assert one.obey(begin) == one.obey(begin) == Obeyed(generation + 1)
        boards = [node.board() for node in nodes]
        assert list(boards[0].compare(0, generation, 1, SUM, boards[0].seen([1]))) == []
        assert list(boards[1].compare(0, generation, 1, PROD, boards[1].seen([0]))) == [0]
    with pytest.raises(RuntimeError, match="the daemon is another one"):
        Mirrors(nodes[0].home, lambda _: 0).obey(MirrorOrder(9, []))
    for node, one in zip(nodes, mirrors, strict=True):
        assert one._present is not None
        one._present.close()
        node.home.remove()


def test_nothing_is_left() -> None:
    before = set(threading.enumerate())
    pair = Pair()
    pair.boards[0].compare(0, 7, 1, SUM, pair.boards[0].seen([1]))
    alone = Node(2)
    alone.open()  # it never begins
    alone.close()
    pair.close()
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("nbcomm"):
            thread.join(PATIENCE)
            assert not thread.is_alive()
    for node in pair.nodes:
        assert node.mirror._context.closed
        assert node.mirror._outward.closed


def test_pages_that_find_no_room_are_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int, __: int, ___: int) -> None:
        raise OSError(28, "No space left on device")

    page = page_of(tmp_path / "board", 3)
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(OSError, match="No space left"):
        make_page(page, None)
    assert not list((tmp_path / "board").iterdir())
