"""The copies of pages of ranks on other nodes."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from nbcomm.board_pages import PAGE, page_of
from nbcomm.node.page_copies import HEAD, PageCopies
from nbcomm.world_dir import WorldDir


@pytest.fixture
def home() -> Iterator[WorldDir]:
    made = WorldDir.create()
    yield made
    made.remove()


def read(home: WorldDir, rank: int, at: int, length: int) -> bytes:
    return page_of(home.board, rank).read_bytes()[at : at + length]


def test_a_word_and_its_block_are_written_for_the_rank_that_said_them(home: WorldDir) -> None:
    copies = PageCopies(home, 3, [1, 2])
    copies.write(2, HEAD.pack(1, 3, 512, 7) + b"block")
    assert read(home, 2, 512, 13) == (7).to_bytes(8, "little") + b"block"
    assert read(home, 1, 0, PAGE) == bytes(PAGE)


@pytest.mark.parametrize("generation", [2, 4])
def test_another_generation_is_not_written(home: WorldDir, generation: int) -> None:
    PageCopies(home, 3, [1]).write(1, HEAD.pack(1, generation, 0, 7) + b"block")
    assert read(home, 1, 0, PAGE) == bytes(PAGE)


def test_a_rank_that_has_no_copy_here_writes_nothing(home: WorldDir) -> None:
    PageCopies(home, 3, [1]).write(5, HEAD.pack(1, 3, 0, 7) + b"block")
    assert not page_of(home.board, 5).exists()


@pytest.mark.parametrize("at", [4, PAGE, PAGE - 8, 1 << 31])
def test_nothing_is_written_beside_the_page(home: WorldDir, at: int) -> None:
    copies = PageCopies(home, 3, [1])
    with pytest.raises(ValueError, match="There is no place"):
        copies.write(1, HEAD.pack(1, 3, at, 7) + b"x" * 16)
    with pytest.raises(struct.error):
        copies.write(1, b"short")
    assert read(home, 1, 0, PAGE) == bytes(PAGE)


def test_the_next_daemon_writes_on_what_is_read_and_makes_what_is_missing(home: WorldDir) -> None:
    PageCopies(home, 3, [1]).write(1, HEAD.pack(1, 3, 0, 7))
    inode = page_of(home.board, 1).stat().st_ino
    again = PageCopies(home, 3, [1, 2], again=True)
    assert page_of(home.board, 1).stat().st_ino == inode
    again.write(1, HEAD.pack(1, 3, 8, 9))
    again.write(2, HEAD.pack(1, 3, 8, 9))
    assert read(home, 1, 0, 16) == struct.pack("<QQ", 7, 9)
    assert read(home, 2, 0, 16) == struct.pack("<QQ", 0, 9)


def test_the_next_generation_begins_with_empty_copies(home: WorldDir) -> None:
    PageCopies(home, 3, [1]).write(1, HEAD.pack(1, 3, 0, 7))
    PageCopies(home, 4, [1])
    assert read(home, 1, 0, PAGE) == bytes(PAGE)
