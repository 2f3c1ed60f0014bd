"""Pages of several ranks, all in this process."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbcomm.board_pages import PAGE, PLACE, PLACES, PLACES_AT, SLOTS
from nbcomm.rank.collectives import fingerprints as board_module
from nbcomm.rank.collectives.fingerprints import (
    LONGEST,
    Fingerprint,
    FingerprintBoard,
    Pages,
    entry,
    place,
)
from nbcomm.world_dir import HOME_VARIABLE

from ...laws import examples
from ..descriptors import descriptors

SUM, PROD = entry(1, "all_reduce(sum)"), entry(2, "all_reduce(prod)")


def compare(
    board: FingerprintBoard, ring: int, group: int, position: int, said: Fingerprint, peers: list[int]
) -> list[int]:
    return list(board.compare(ring, group, position, said, board.seen(peers)))


@pytest.fixture
def boards(tmp_path: Path) -> Iterator[list[FingerprintBoard]]:
    made = [FingerprintBoard(tmp_path / "board", rank) for rank in range(3)]
    with ExitStack() as stack:
        for board in made:
            board.meet(range(3))
            stack.callback(board.leave)
        yield made


def test_the_first_sees_nothing_and_the_last_sees_all_who_differ(boards: list[FingerprintBoard]) -> None:
    assert compare(boards[0], 0, 7, 1, SUM, [1, 2]) == []
    assert compare(boards[1], 0, 7, 1, PROD, [0, 2]) == [0]
    assert compare(boards[2], 0, 7, 1, SUM, [0, 1]) == [1]


def test_groups_positions_and_rings_do_not_meet(boards: list[FingerprintBoard]) -> None:
    compare(boards[0], 0, 7, 1, SUM, [1])
    assert compare(boards[1], 0, 8, 1, PROD, [0]) == []
    assert compare(boards[1], 0, 7, 2, PROD, [0]) == []
    assert compare(boards[1], 1, 7, 1, PROD, [0]) == []
    assert compare(boards[1], 0, 7, 1, PROD, [0]) == [0]


def test_who_ran_ahead_is_compared_at_the_same_position(boards: list[FingerprintBoard]) -> None:
    for position in range(1, 501):
        compare(boards[0], 0, 7, position, SUM, [1])
    for position in range(1, 501):
        assert compare(boards[1], 0, 7, position, PROD if position == 321 else SUM, [0]) == [0] * (position == 321)


def test_an_overwritten_slot_is_no_difference(boards: list[FingerprintBoard]) -> None:
    compare(boards[0], 0, 7, 1, SUM, [1])
    compare(boards[0], 0, 7, 1 + SLOTS, SUM, [1])
    assert compare(boards[1], 0, 7, 1, PROD, [0]) == []
    assert boards[1].text(0, 0, 7, 1) == ""
    assert boards[1].text(0, 0, 7, 1 + SLOTS) == "all_reduce(sum)"


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2**32 - 1), st.integers(1, 10**6)), max_size=80, unique=True)
)
@examples(30)
def test_ranks_that_do_the_same_never_differ(tmp_path_factory: pytest.TempPathFactory, calls: list) -> None:
    folder = tmp_path_factory.mktemp("boards") / "board"
    first, second = FingerprintBoard(folder, 0), FingerprintBoard(folder, 1)
    first.meet([1])
    second.meet([0])
    for at, (ring, group, position) in enumerate(calls):
        compare(first, ring, group, position, entry(at, ""), [1])
    for at, (ring, group, position) in enumerate(calls):
        assert compare(second, ring, group, position, entry(at, ""), [0]) == []
    first.leave()
    second.leave()


def test_words_are_read_whole_or_not_at_all(boards: list[FingerprintBoard]) -> None:
    compare(boards[0], 0, 7, 1, entry(1, "größer"), [])
    assert boards[1].text(0, 0, 7, 1) == "größer"
    compare(boards[0], 0, 7, 2, entry(1, "x" * 10_000), [])
    assert boards[1].text(0, 0, 7, 2) == "x" * LONGEST
    boards[0]._bytes[((7 + 2) % SLOTS * 64 + 1) * 8] ^= 1
    assert boards[1].text(0, 0, 7, 2) == ""  # torn


def test_who_is_on_another_machine_is_not_seen(boards: list[FingerprintBoard]) -> None:
    boards[0].meet([1, 2, 9])
    assert list(boards[0].seen([1, 2, 9])) == [1, 2]
    assert compare(boards[0], 0, 7, 1, SUM, [9]) == []
    assert boards[0].text(9, 0, 7, 1) == ""


def test_a_new_process_has_a_new_page(boards: list[FingerprintBoard], tmp_path: Path) -> None:
    compare(boards[0], 0, 7, 1, SUM, [])
    again = FingerprintBoard(tmp_path / "board", 0)
    boards[1].meet([0])
    assert boards[1].text(0, 0, 7, 1) == ""
    again.leave()
    assert sorted(page.name for page in (tmp_path / "board").iterdir()) == ["board0", "board1", "board2"]
    assert {page.stat().st_mode & 0o777 for page in (tmp_path / "board").iterdir()} == {0o600}


def test_nobody_is_seen_after_leaving(boards: list[FingerprintBoard]) -> None:
    compare(boards[0], 0, 7, 1, SUM, [])
    boards[1].leave()
    assert boards[1].seen([0, 2]) == {}
    assert compare(boards[1], 0, 7, 1, PROD, [0]) == []


def test_who_compares_while_pages_are_left_sees_no_difference(boards: list[FingerprintBoard]) -> None:
    boards[0].compare(0, 7, 1, SUM, Pages())
    pages = boards[1].seen([0])
    before = descriptors()
    boards[1].leave()
    assert len(descriptors()) < len(before)
    assert list(boards[1].compare(0, 7, 1, PROD, pages)) == []


# ── what cells called, and who is waited for ────────────────────────────────────────────────────────


def test_a_place_is_read_where_it_belongs_or_not_at_all(boards: list[FingerprintBoard]) -> None:
    boards[0].put_place(7, 1, place("all_gather of a dict|4"))
    assert boards[1].place_of(0, 7, 1) == "all_gather of a dict|4"
    assert boards[1].place_of(0, 7, 2) is None
    assert boards[1].place_of(0, 8, 1) is None
    assert boards[1].place_of(2, 7, 1) is None
    boards[0].put_place(7, 1 + PLACES, place("x" * 1000))  # far beyond
    assert boards[1].place_of(0, 7, 1) is None
    assert set(boards[1].place_of(0, 7, 1 + PLACES) or "") == {"x"}
    boards[0]._bytes[PLACES_AT + (7 + 1) % PLACES * PLACE + 20] ^= 1
    assert boards[1].place_of(0, 7, 1 + PLACES) is None  # torn


def test_the_last_place_and_the_last_slot_do_not_touch(boards: list[FingerprintBoard]) -> None:
    for position in range(2 * SLOTS):
        boards[0].put_place(0, position, place("p" * 1000))
        boards[0].compare(1, 0, position, entry(1, "e" * 1000), Pages())
    for position in range(SLOTS, 2 * SLOTS):
        assert set(boards[1].text(0, 1, 0, position)) == {"e"}
    for position in range(2 * SLOTS - PLACES, 2 * SLOTS):
        assert set(boards[1].place_of(0, 0, position) or "") == {"p"}


def test_whoever_hears_waits_until_all_have_come_and_no_longer(
    boards: list[FingerprintBoard], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board_module, "_PATIENCE", 60.0)
    monkeypatch.setattr(board_module, "_LONGEST_WAIT", 60.0)
    came: list[int] = []

    def come(rank: int) -> None:
        compare(boards[rank], 0, 7, 1, SUM, [])
        came.append(rank)
        boards[rank].put_place(7, 1, place(f"|{rank}"))

    def late() -> bool:  # asked at every look: one further step, until all are there
        if steps:
            steps.pop(0)()
        return False

    steps: list[Callable[[], None]] = [lambda: None, lambda: come(2), lambda: None, lambda: come(1)]
    heard = boards[0].hear(0, 7, 1, [1, 2], late)
    assert heard == {1: ("all_reduce(sum)", "|1"), 2: ("all_reduce(sum)", "|2")}
    assert (came, steps) == ([2, 1], [])


@pytest.mark.parametrize(("longest", "heard_of"), [(2.0, [1, 2]), (0.35, [2])])
def test_whoever_hears_waits_on_while_others_come_but_not_for_ever(
    boards: list[FingerprintBoard], monkeypatch: pytest.MonkeyPatch, longest: float, heard_of: list[int]
) -> None:
    clock = [0.0]
    monkeypatch.setattr(board_module, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=lambda _: None))
    monkeypatch.setattr(board_module, "_LONGEST_WAIT", longest)
    monkeypatch.setattr(board_module, "_EACH", 0.0)

    def late() -> bool:  # asked at every look
        clock[0] += 0.15
        if rank := {2: 2, 4: 1}.get(round(clock[0] / 0.15)):
            compare(boards[rank], 0, 7, 1, SUM, [])
            boards[rank].put_place(7, 1, place(f"|{rank}"))
        return False

    heard = boards[0].hear(0, 7, 1, [1, 2], late)
    assert [rank for rank in (1, 2) if heard[rank][0]] == heard_of


def test_nobody_waits_for_ever_or_in_vain(boards: list[FingerprintBoard], monkeypatch: pytest.MonkeyPatch) -> None:
    compare(boards[1], 0, 7, 1, SUM, [])
    began = time.monotonic()
    assert boards[0].hear(0, 7, 1, [1, 2]) == {1: ("all_reduce(sum)", ""), 2: ("", "")}
    assert time.monotonic() - began >= board_module._PATIENCE
    monkeypatch.setattr(board_module, "_PATIENCE", 600.0)
    assert boards[0].hear(0, 7, 1, [1, 2], lambda: True) == {1: ("all_reduce(sum)", ""), 2: ("", "")}

    def left() -> bool:
        boards[0].leave()
        steps.append(1)
        return len(steps) > 3

    steps: list[int] = []
    assert boards[0].hear(0, 7, 1, [1, 2], left) == {1: ("", ""), 2: ("", "")}


@pytest.mark.ranks
def test_a_forked_child_neither_writes_on_the_page_nor_sees_others(boards: list[FingerprintBoard]) -> None:
    compare(boards[0], 0, 7, 1, SUM, [])
    compare(boards[1], 0, 7, 2, SUM, [])
    pages = boards[0].seen([1])
    child = os.fork()
    if child == 0:
        try:
            seen = boards[0].compare(0, 7, 2, PROD, pages) or boards[0].seen([1])
            boards[0].compare(0, 7, 1, PROD, Pages())
            boards[0].put_place(7, 1, place("|3"))
            os._exit(3 if seen else 0)
        finally:
            os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert boards[1].text(0, 0, 7, 1) == "all_reduce(sum)"
    assert boards[1].place_of(0, 7, 1) is None
    assert compare(boards[1], 0, 7, 1, SUM, [0]) == []
    assert list(boards[0].compare(0, 7, 2, PROD, pages)) == [1], "the parent sees what it saw"


# ── where a page lies ───────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def fill(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Name a world's directory, and let there be no room left in some folders."""
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    allocate = os.posix_fallocate

    def fill(*folders: Path) -> None:
        def refuse(descriptor: int, offset: int, length: int) -> None:
            if Path(f"/proc/self/fd/{descriptor}").readlink().parent in folders:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            allocate(descriptor, offset, length)

        monkeypatch.setattr(os, "posix_fallocate", refuse)

    return fill


def see_each_other(*boards: FingerprintBoard) -> bool:
    """Whether each of ranks 0 and 1 sees what the other says."""
    for board in boards:
        board.meet(range(2))
        compare(board, 0, 7, 1, entry(1, "a call"), [])
    texts = [board.text(1 - rank, 0, 7, 1) for rank, board in enumerate(boards)]
    for board in boards:
        board.leave()
    return texts == ["a call"] * 2


def test_a_page_has_all_its_blocks_before_anybody_writes(boards: list[FingerprintBoard], tmp_path: Path) -> None:
    for page in (tmp_path / "board").iterdir():
        assert page.stat().st_blocks * 512 >= PAGE == page.stat().st_size


@pytest.mark.parametrize("how", ["no such call", "not on this file system"])
def test_where_blocks_cannot_be_asked_for_they_are_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    if how == "no such call":
        monkeypatch.delattr(os, "posix_fallocate")
    else:
        monkeypatch.setattr(os, "posix_fallocate", refuse)
    assert see_each_other(*(FingerprintBoard(tmp_path / "board", rank) for rank in range(2)))
    page = (tmp_path / "board" / "board0").stat()
    assert page.st_blocks * 512 >= PAGE == page.st_size


def test_a_page_without_room_goes_to_the_worlds_own_directory_and_is_seen(
    fill: Callable[..., None], tmp_path: Path
) -> None:
    folder = tmp_path / "board"
    first = FingerprintBoard(folder, 0)
    fill(folder)
    second = FingerprintBoard(folder, 1)
    assert (folder / "board1").resolve() == tmp_path / "home" / "board" / "board1"
    assert see_each_other(first, second)
    assert [page.name for page in (*folder.glob("*.part"), *(tmp_path / "home" / "board").glob("*.part"))] == []
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "home" / "board").iterdir()} == {0o600}
    assert (tmp_path / "home" / "board").stat().st_mode & 0o777 == 0o700
    assert list((tmp_path / "home").glob("*.log")) == []


def test_a_new_process_finds_room_again(fill: Callable[..., None], tmp_path: Path) -> None:
    folder = tmp_path / "board"
    first = FingerprintBoard(folder, 0)
    fill(folder)
    for _ in range(2):
        FingerprintBoard(folder, 1)
    fill()
    second = FingerprintBoard(folder, 1)
    assert not (folder / "board1").is_symlink()
    assert see_each_other(first, second)


def test_without_any_room_a_rank_is_not_seen_and_its_log_says_so_once(
    fill: Callable[..., None], tmp_path: Path
) -> None:
    folder = tmp_path / "board"
    boards = [FingerprintBoard(folder, rank) for rank in range(2)]
    fill(folder, tmp_path / "home" / "board")
    boards[1] = FingerprintBoard(folder, 1)  # another process in the place of the first
    said = (tmp_path / "home" / "rank1.log").read_text()
    assert said.count("\n") == 1
    assert "Rank 1 could not create its page of shared memory ([Errno 28] No space left on device)" in said
    for board in boards:
        board.meet(range(2))
    assert compare(boards[0], 0, 7, 1, SUM, [1]) == []
    assert compare(boards[1], 0, 7, 1, PROD, [0]) == [0], "it still sees the others"
    assert (boards[0].seen([1]), boards[0].text(1, 0, 7, 1)) == ({}, "")
    for board in boards:
        board.leave()
    assert [page.name for page in folder.iterdir()] == ["board0"]
    assert (tmp_path / "home" / "rank1.log").read_text() == said


def test_a_collective_is_compared_before_its_words_are_there(boards: list[FingerprintBoard]) -> None:
    compare(boards[0], 0, 7, 1, PROD, [])  # whose words lie where the next one's will
    assert list(boards[0].announce(7, 1 + SLOTS, SUM.number, boards[0].seen([1]))) == []
    assert list(boards[1].announce(7, 1 + SLOTS, PROD.number, boards[1].seen([0]))) == [0]
    assert boards[1].text(0, 0, 7, 1 + SLOTS) == "", "an earlier call's words are not this one's"
    boards[0].put_words(7, 1 + SLOTS, SUM)
    assert boards[1].text(0, 0, 7, 1 + SLOTS) == "all_reduce(sum)"
    boards[0].put_words(7, 1, PROD)
    assert boards[1].text(0, 0, 7, 1 + SLOTS) == "all_reduce(sum)", "a later call has this slot"
