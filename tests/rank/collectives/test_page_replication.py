"""The board between two nodes: a rank on each, both in this process, and what their daemons serve."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nbcomm.board_pages import SLOTS, make_page, page_of
from nbcomm.node import dealers
from nbcomm.node.dealers import Connection
from nbcomm.protocol import Listener
from nbcomm.rank.collectives import page_replication
from nbcomm.rank.collectives.fingerprints import FingerprintBoard, entry, place

from ...node.network import Network
from ...node.nodes import RankKeys, ServedNode
from ...node.served import await_that

PATIENCE = 30.0
SUM, PROD = entry(1, "all_reduce(sum)"), entry(2, "all_reduce(prod)")


class Pair:
    """Two nodes with a rank each, whose number is the node's; a network from the first rank to the second node."""

    def __init__(self) -> None:
        self.nodes = [ServedNode(number) for number in (0, 1)]
        self.boards: list[FingerprintBoard] = []
        self.network: Network | None = None
        self.form(1)

    def form(self, generation: int, *, new: int | None = None) -> None:
        """Form groups; one rank may have a new process."""
        for number, node in enumerate(self.nodes):
            if new == 1 - number:
                node.ranks[1 - number] = RankKeys(1 - number, start=generation)
            node.serve(generation, ranks=[1 - number])
        if not self.boards:
            self.network = Network(self.nodes[1].address)
            self.boards = [FingerprintBoard(node.home.board, number) for number, node in enumerate(self.nodes)]
        if new is not None:
            self.boards[new] = FingerprintBoard(self.nodes[new].home.board, new)
        for rank in (0, 1):
            self.meet(rank, generation)

    def meet(self, rank: int, generation: int) -> None:
        there = self.nodes[1 - rank]
        listener = there.listener(self.network.address if rank == 0 and self.network else "")
        self.boards[rank].replicate(generation, [listener], there.ranks[rank].connect)
        self.boards[rank].meet([0, 1], [0, 1])

    @property
    def wire(self) -> Network:
        assert self.network is not None
        return self.network

    def differs(self, position: int, group: int = 7) -> bool:
        """Let the ranks do different things, one after the other; return whether the second one sees that."""
        first, second = self.boards
        assert list(first.compare(0, group, position, SUM, first.seen([1]))) == []
        return bool(second.compare(0, group, position, PROD, second.seen([0])))

    def close(self) -> None:
        self.wire.close()
        for board in self.boards:
            board.replicate(9, [], None)
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
    first.put_place(7, 1, place("all_reduce, line 3"))
    await_that(lambda: second.place_of(0, 7, 1) == "all_reduce, line 3", "it does not come")


def test_messages_are_compared_between_nodes(pair: Pair) -> None:
    first, second = pair.boards
    assert first.is_shown_to(1)
    assert list(first.compare(1, 9, 1, SUM, first.seen([1]).of(1, 1))) == []
    assert second.text(0, 1, 9, 1) == "all_reduce(sum)"
    assert list(second.compare(1, 9, 1, PROD, second.seen([0]).of(0, 0))) == [0]


def test_what_is_withdrawn_goes_from_the_copies(pair: Pair) -> None:
    first, second = pair.boards
    first.compare(0, 7, 1, SUM, first.seen([1]))
    first.withdraw(0, 7, 1)
    await_that(lambda: not second.text(0, 0, 7, 1), "it stays")


def test_where_all_are_on_one_node_nothing_is_said(pair: Pair) -> None:
    pair.nodes[1].served.close()
    first = pair.boards[0]
    began = time.monotonic()
    assert list(first.compare(0, 7, 1, SUM, first.seen([]))) == []
    assert time.monotonic() - began < PATIENCE


# ── somebody dies ───────────────────────────────────────────────────────────────────────────────────


def test_a_daemon_that_ends_costs_comparisons_until_the_next_one_is_there(pair: Pair) -> None:
    first, there = pair.boards[0], pair.nodes[1]
    assert pair.differs(1)
    there.replace_daemon()
    await_that(lambda: first.compare(0, 7, 2, SUM, first.seen([1])) == () and not first.is_shown_to(1), "it is there")
    there.serve(1, ranks=[0], again=True)

    def arrives() -> bool:
        first.compare(0, 7, 3, SUM, first.seen([1]))
        return pair.boards[1].text(0, 0, 7, 3) == "all_reduce(sum)"

    await_that(arrives, "it does not mend")
    assert first.is_shown_to(1)
    assert pair.differs(4)


def test_a_network_that_breaks_frees_who_waits_and_mends(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_replication, "_PATIENCE", PATIENCE)
    first, second = pair.boards
    assert list(first.compare(0, 7, 1, SUM, first.seen([1]))) == []
    pair.wire.silent = True
    waiting = threading.Thread(target=lambda: first.compare(0, 7, 2, SUM, first.seen([1])))
    waiting.start()
    pair.wire.cut()
    waiting.join(PATIENCE)
    assert not waiting.is_alive()
    pair.wire.mend()

    def arrives() -> bool:
        first.compare(0, 7, 3, SUM, first.seen([1]))
        return second.text(0, 0, 7, 3) == "all_reduce(sum)"

    await_that(arrives, "it does not mend")


def test_who_gets_no_answer_goes_on_after_its_patience_and_waits_no_more(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, answered, answers = pair.boards[0], threading.Event(), Connection.receive
    assert list(first.compare(0, 7, 1, SUM, first.seen([1]))) == []

    def receive(self: Connection, patience: float | None = None) -> list[bytes] | None:
        return answers(self, patience) if answered.is_set() else None

    monkeypatch.setattr(Connection, "receive", receive)
    assert list(first.compare(0, 7, 2, SUM, first.seen([1]))) == []
    assert not first.is_shown_to(1)
    answered.set()
    await_that(lambda: [first.compare(0, 7, 3, SUM, first.seen([1]))] and first.is_shown_to(1), "it is not heard again")


def test_a_machine_that_is_not_reached_costs_its_patience_once(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_replication, "_PATIENCE", 0.1)
    monkeypatch.setattr(dealers, "_SILENCE", 600_000)
    pair.wire.silent = True
    first, there = pair.boards[0], pair.nodes[1]
    unreached = Listener(1, pair.wire.address, RankKeys(5).public)
    first.replicate(2, [unreached], there.ranks[0].connect)
    assert list(first.compare(0, 7, 1, SUM, first.seen([1]))) == []
    assert not first.is_shown_to(1)


def test_a_new_process_of_a_rank_is_compared_and_its_last_one_writes_nothing(pair: Pair) -> None:
    assert pair.differs(1)
    stale = pair.boards[0]
    pair.form(2, new=0)
    assert pair.differs(1, group=8)
    began = time.monotonic()
    stale.compare(0, 9, 5, SUM, stale.seen([1]))
    assert time.monotonic() - began < PATIENCE
    pair.boards[0].compare(0, 9, 6, SUM, pair.boards[0].seen([1]))
    assert pair.boards[1].text(0, 0, 9, 5) == ""
    assert pair.boards[1].text(0, 0, 9, 6) == "all_reduce(sum)"
    stale.replicate(9, [], None)


def test_the_next_generation_keeps_the_connections_and_nothing_else(pair: Pair) -> None:
    assert pair.differs(1)
    node = pair.boards[0]._replication._nodes[1]
    pair.form(2)
    assert pair.boards[0]._replication._nodes[1] is node
    assert pair.boards[1].text(0, 0, 7, 1) == ""
    assert pair.differs(2)


def test_an_interrupt_while_it_waits_does_not_mix_up_answers(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    first = pair.boards[0]
    assert list(first.compare(0, 7, 1, SUM, first.seen([1]))) == []

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            first.compare(0, 7, 2, SUM, first.seen([1]))
    assert pair.differs(3)
    assert first.is_shown_to(1)


@pytest.mark.ranks
def test_the_child_of_a_fork_shows_nothing_and_waits_for_no_lock(pair: Pair) -> None:
    first, second = pair.boards
    assert pair.differs(1)
    with first._replication._lock:  # as a thread has it that compares
        child = os.fork()
        if child == 0:
            first.compare(0, 7, 2, SUM, first.seen([1]))
            os._exit(0)
    deadline = time.monotonic() + PATIENCE
    while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ended == (child, 0)
    assert second.text(0, 0, 7, 2) == ""
    assert pair.differs(3)


def test_pages_that_find_no_room_are_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int, __: int, ___: int) -> None:
        raise OSError(28, "No space left on device")

    page = page_of(tmp_path / "board", 3)
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(OSError, match="No space left"):
        make_page(page, None)
    assert not list((tmp_path / "board").iterdir())
