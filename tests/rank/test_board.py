"""Pages of several ranks, all in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbcomm.rank.board import _LONGEST, _SLOTS, Board, Entry, entry

SUM, PROD = entry(1, "all_reduce(sum)"), entry(2, "all_reduce(prod)")


def compare(board: Board, ring: int, group: int, position: int, said: Entry, peers: list[int]) -> list[int]:
    return list(board.compare(ring, group, position, said, board.seen(peers)))


@pytest.fixture
def boards(tmp_path: Path) -> Iterator[list[Board]]:
    made = [Board(tmp_path / "board", rank) for rank in range(3)]
    with ExitStack() as stack:
        for board in made:
            board.meet(range(3))
            stack.callback(board.leave)
        yield made


def test_the_first_sees_nothing_and_the_last_sees_all_who_differ(boards: list[Board]) -> None:
    assert compare(boards[0], 0, 7, 1, SUM, [1, 2]) == []
    assert compare(boards[1], 0, 7, 1, PROD, [0, 2]) == [0]
    assert compare(boards[2], 0, 7, 1, SUM, [0, 1]) == [1]


def test_groups_positions_and_rings_do_not_meet(boards: list[Board]) -> None:
    compare(boards[0], 0, 7, 1, SUM, [1])
    assert compare(boards[1], 0, 8, 1, PROD, [0]) == []
    assert compare(boards[1], 0, 7, 2, PROD, [0]) == []
    assert compare(boards[1], 1, 7, 1, PROD, [0]) == []
    assert compare(boards[1], 0, 7, 1, PROD, [0]) == [0]


def test_who_ran_ahead_is_compared_at_the_same_position(boards: list[Board]) -> None:
    for position in range(1, 501):
        compare(boards[0], 0, 7, position, SUM, [1])
    for position in range(1, 501):
        assert compare(boards[1], 0, 7, position, PROD if position == 321 else SUM, [0]) == [0] * (position == 321)


def test_an_overwritten_slot_is_no_difference(boards: list[Board]) -> None:
    compare(boards[0], 0, 7, 1, SUM, [1])
    compare(boards[0], 0, 7, 1 + _SLOTS, SUM, [1])
    assert compare(boards[1], 0, 7, 1, PROD, [0]) == []
    assert boards[1].text(0, 0, 7, 1) == ""
    assert boards[1].text(0, 0, 7, 1 + _SLOTS) == "all_reduce(sum)"


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2**32 - 1), st.integers(1, 10**6)), max_size=80, unique=True)
)
@settings(max_examples=30)
def test_ranks_that_do_the_same_never_differ(tmp_path_factory: pytest.TempPathFactory, calls: list) -> None:
    folder = tmp_path_factory.mktemp("boards") / "board"
    first, second = Board(folder, 0), Board(folder, 1)
    first.meet([1])
    second.meet([0])
    for at, (ring, group, position) in enumerate(calls):
        compare(first, ring, group, position, entry(at, ""), [1])
    for at, (ring, group, position) in enumerate(calls):
        assert compare(second, ring, group, position, entry(at, ""), [0]) == []
    first.leave()
    second.leave()


def test_words_are_read_whole_or_not_at_all(boards: list[Board]) -> None:
    compare(boards[0], 0, 7, 1, entry(1, "größer"), [])
    assert boards[1].text(0, 0, 7, 1) == "größer"
    compare(boards[0], 0, 7, 2, entry(1, "x" * 10_000), [])
    assert boards[1].text(0, 0, 7, 2) == "x" * _LONGEST
    boards[0]._bytes[((7 + 2) % _SLOTS * 64 + 1) * 8] ^= 1
    assert boards[1].text(0, 0, 7, 2) == ""  # torn


def test_who_is_on_another_machine_is_not_seen(boards: list[Board]) -> None:
    boards[0].meet([1, 2, 9])
    assert list(boards[0].seen([1, 2, 9])) == [1, 2]
    assert compare(boards[0], 0, 7, 1, SUM, [9]) == []
    assert boards[0].text(9, 0, 7, 1) == ""


def test_a_new_process_has_a_new_page(boards: list[Board], tmp_path: Path) -> None:
    compare(boards[0], 0, 7, 1, SUM, [])
    again = Board(tmp_path / "board", 0)
    boards[1].meet([0])
    assert boards[1].text(0, 0, 7, 1) == ""
    again.leave()
    assert sorted(page.name for page in (tmp_path / "board").iterdir()) == ["board0", "board1", "board2"]
    assert {page.stat().st_mode & 0o777 for page in (tmp_path / "board").iterdir()} == {0o600}


def test_nobody_is_seen_after_leaving(boards: list[Board]) -> None:
    compare(boards[0], 0, 7, 1, SUM, [])
    boards[1].leave()
    assert boards[1].seen([0, 2]) == {}
    assert compare(boards[1], 0, 7, 1, PROD, [0]) == []


def test_who_compares_while_pages_are_left_sees_no_difference(boards: list[Board]) -> None:
    boards[0].compare(0, 7, 1, SUM, {})
    pages = boards[1].seen([0])
    before = len(list(Path("/proc/self/fd").iterdir()))
    boards[1].leave()
    assert len(list(Path("/proc/self/fd").iterdir())) < before
    assert list(boards[1].compare(0, 7, 1, PROD, pages)) == []
