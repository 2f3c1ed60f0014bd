"""Copies of the pages of ranks on other nodes, which the ranks of this node read; see `board_pages`.

A rank writes what it is about to do on its own page, and then reads the pages of the others (`rank.collectives.
fingerprints`). On one node the later of two sees what the earlier has written. So that this holds between nodes, too, a
rank has its word written on its copies before it reads::

    rank 0, node 0                          daemon of node 1         rank 2, node 1
    writes its page
    says so ──────────────────────────────→ writes the copy
    reads on ←───────────────────────────── has written it           sees it when it reads

Of two ranks that differ, at least one has its copy written before the other reads. Nobody waits for a rank, but only
for the daemons of its group's other nodes: one round trip. Where one does not answer, a comparison is missing, and
nothing else.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable

from ..board_pages import PAGE, make_page, open_page, page_of
from ..world_dir import WorldDir

HEAD = struct.Struct("<QIIQ")
"""What a rank says first: a number if it waits, the generation, where on the page, the word there. Behind it comes the
block that is written behind the word."""

NUMBER = struct.Struct("<Q")
"""The answer to a rank that waits."""


class PageCopies:
    """The copies of one generation.

    Args:
        home: the node's directory.
        generation: whose.
        ranks: of other nodes.
        again: they were written by another daemon before, and may be read.

    Raises:
        OSError: there is no room for them.
    """

    def __init__(self, home: WorldDir, generation: int, ranks: Iterable[int], *, again: bool = False) -> None:
        self._generation = generation
        self._pages = {rank: _Copy(_page(home, rank, again=again)) for rank in ranks}

    def write(self, rank: int, said: bytes) -> None:
        """Write what a rank has said, a head and a block, if it is of this generation.

        Raises:
            ValueError: there is no such place.
            struct.error: this is no head.
        """
        _, generation, at, word = HEAD.unpack_from(said)
        copy = self._pages.get(rank)
        if copy is not None and generation == self._generation:
            copy.write(at, word, said[HEAD.size :])


class _Copy:
    """The copy of one page."""

    def __init__(self, page: mmap.mmap) -> None:
        self._bytes = memoryview(page)
        self._words = self._bytes.cast("Q")

    def write(self, at: int, word: int, block: bytes) -> None:
        """Write a block, and then the word before it, which makes it valid."""
        end = at + 8 + len(block)
        if at % 8 or end > PAGE:
            raise ValueError(f"There is no place {at} for {len(block)} bytes on a page.")
        self._bytes[at + 8 : end] = block
        self._words[at // 8] = word


def _page(home: WorldDir, rank: int, *, again: bool) -> mmap.mmap:
    page = page_of(home.board, rank)
    if again and page.exists():
        return open_page(page)
    return make_page(page, home.spare_board)
