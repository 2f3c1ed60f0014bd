"""A board in shared memory on which each rank writes what it is about to do, before data moves.

Plain gloo answers a wrong shape or dtype by ending the process of a peer, and a wrong reduction by waiting for ever. So
each rank writes a fingerprint of its call on its own page, and then reads the pages of the other ranks: the last one
sees the difference, raises, and does not enter the call. No rank waits for another here.

A page has two rings of slots, for collectives and for messages. A slot is found by the group and the position in it, so
a rank that is ahead can still be compared. What is compared fits into one aligned word (32 bits say which call, 32 bits
what it is), which is written at once; the words beside it are only read for the message. An overwritten slot means one
comparison less, never a wrong one.

After the rings a page has *places*: what the cell itself called, and in which line. They are only read for a message,
too. So they are written while the data is already moving, or by a rank that waits for it, and few are kept.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
import weakref
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ...board_pages import PAGE, PLACE, PLACES, PLACES_AT, SLOT, SLOTS, make_page, page_of
from ...protocol import Listener
from ...world_dir import HOME_VARIABLE, WorldDir
from .page_replication import Connect, PageReplication

_WORDS = SLOT // 8
_RING = SLOTS * _WORDS
_TEXT = struct.Struct("<IH")  # crc of the text, its length
LONGEST = SLOT - 8 - _TEXT.size
_LONGEST_PLACE = PLACE - 8 - _TEXT.size
_SPREAD = 0x9E3779B1  # 2**32 / golden ratio (Knuth): neighbouring positions get distant words
_MASK = 0xFFFFFFFF

_PATIENCE, _EACH, _LONGEST_WAIT, _LOOK = 0.2, 0.01, 3.0, 0.001
"""Seconds without news to wait for ranks that are about to write their call, more for each of them, because they may
share cores; in all; and between two looks."""


class Fingerprint(NamedTuple):
    """The description of a call.

    Attributes:
        number: 32 bits that are equal where calls agree.
        block: the call in words, as stored on a page; made once for the many calls that are equal.
    """

    number: int
    block: bytes

    @property
    def words(self) -> str:
        """The call in words."""
        return self.block[_TEXT.size :].decode(errors="replace")


def entry(number: int, words: str) -> Fingerprint:
    """Return the fingerprint of a call, ready to be written."""
    return Fingerprint(number, _block(words, LONGEST))


def place(words: str) -> bytes:
    """Return what a cell called, and where, ready to be written."""
    return _block(words, _LONGEST_PLACE)


def _block(words: str, longest: int) -> bytes:
    text = words.encode()[:longest]
    return _TEXT.pack(zlib.crc32(text), len(text)) + text


def words_of(raw: bytes) -> str | None:
    """Return the words of an entry's block or of a place; None if it changed while it was read."""
    check, length = _TEXT.unpack_from(raw)
    body = raw[_TEXT.size : _TEXT.size + length]
    return body.decode(errors="replace") if zlib.crc32(body) == check else None


def in_child(method: Callable[[], None]) -> None:
    """Call a method in the child of every fork, for as long as its object lives."""
    found = weakref.WeakMethod(method)

    def forked() -> None:
        method = found()
        if method is not None:
            method()

    os.register_at_fork(after_in_child=forked)


class Pages(dict[int, memoryview]):
    """The pages of some ranks, to be read.

    Attributes:
        far: the nodes on which some of these ranks are, but this one.
    """

    far: tuple[int, ...] = ()

    def of(self, rank: int, node: int | None) -> Pages:
        """Return the page of one of these ranks, which is on another node or not; none if it is not there."""
        alone = Pages({rank: self[rank]} if rank in self else {})
        alone.far = () if node is None or rank not in self else (node,)
        return alone


class FingerprintBoard:
    """This rank's page, and those of the other ranks: those on other nodes are copies, see `PageReplication`.

    Args:
        folder: where the pages are; private to the user.
        rank: the owner of this page; an existing page is replaced.

    Attributes:
        shown: the other ranks of this node see this page.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder = folder
        self._rank = rank
        self._replication = PageReplication()
        self._far: dict[int, int] = {}  # the nodes of the ranks on other ones
        self._far_nodes: tuple[int, ...] = ()
        self.shown = False
        self._take(_own_page(folder, rank))
        self._maps: list[mmap.mmap] = []
        self._peers: dict[int, memoryview] = {}
        in_child(self._forked)

    def _take(self, page: mmap.mmap) -> None:
        self._own = page
        self._bytes = memoryview(page)
        self._words = self._bytes.cast("Q")

    def _forked(self) -> None:
        """Detach the child of a fork from the board: it is no rank, so its calls are neither shown nor compared.

        It writes on a page that nobody sees. So no call has to check this.
        """
        self._take(mmap.mmap(-1, PAGE))
        self._far_nodes = ()
        self._replication.leave()
        with suppress(BufferError):  # a thread that no longer exists was reading a page
            self.leave()

    def replicate(self, generation: int, listeners: Sequence[Listener], connect: Connect | None) -> None:
        """Have this page copied to other nodes from now on; see `PageReplication.begin`."""
        self._replication.begin(generation, listeners, connect)

    def meet(self, ranks: Iterable[int], nodes: Sequence[int] = ()) -> None:
        """Compare with the pages of these ranks from now on; what is not there is not compared.

        Args:
            ranks: all that live.
            nodes: the node of each rank of the world, if there are several.
        """
        self.leave()
        self._far = {rank: node for rank, node in enumerate(nodes) if node != nodes[self._rank]}
        self._far_nodes = tuple(sorted({self._far[rank] for rank in ranks if rank in self._far}))
        self.shown = page_of(self._folder, self._rank).exists()  # a system may clear such folders at any time
        for rank in ranks:
            if rank == self._rank:
                continue
            with suppress(FileNotFoundError):
                descriptor = os.open(page_of(self._folder, rank), os.O_RDONLY)
                try:
                    page = mmap.mmap(descriptor, PAGE, prot=mmap.PROT_READ)
                finally:
                    os.close(descriptor)
                self._maps.append(page)
                self._peers[rank] = memoryview(page).cast("Q")

    def leave(self) -> None:
        """Stop comparing with other ranks' pages. A comparison on another thread at this moment finds no difference."""
        for words in self._peers.values():
            words.release()
        self._peers.clear()
        for page in self._maps:
            page.close()  # at once: a traceback that is kept would keep its descriptor open
        self._maps.clear()

    def seen(self, ranks: Sequence[int]) -> Pages:
        """Return the readable pages among those of some ranks."""
        pages = Pages({rank: self._peers[rank] for rank in ranks if rank in self._peers})
        pages.far = tuple(sorted({self._far[rank] for rank in pages if rank in self._far}))
        return pages

    def node_of(self, rank: int) -> int | None:
        """Return the node of a rank that is on another one than this; else None."""
        return self._far.get(rank)

    def is_shown_to(self, rank: int) -> bool:
        """Return whether a rank sees this page, or a copy of it."""
        if rank not in self._far:
            return self.shown
        return self._replication.works(self._far[rank]) and rank in self._peers

    def compare(self, ring: int, group: int, position: int, said: Fingerprint, pages: Pages) -> Sequence[int]:
        """Write what this rank is about to do, and return the peers that do something else at this position.

        Args:
            ring: 0 for collectives, 1 for messages.
            group: 32 bits that say which group, and which of its lives.
            position: of the call in the group.
            said: what it is, and its words for the other ranks' message.
            pages: those of the ranks to compare with, from `seen`.
        """
        tag = (group + position * _SPREAD) & _MASK
        at = ring * _RING + (group + position) % SLOTS * _WORDS
        number, block = said
        word = tag << 32 | number
        start = at * 8 + 8
        self._bytes[start : start + len(block)] = block
        self._words[at] = word
        if pages.far:  # the copies must be there before this rank reads
            self._replication.show(pages.far, at * 8, word, block, wait=True)
        different = None
        try:
            for peer, page in pages.items():
                other = page[at]
                if other != word and other >> 32 == tag:
                    different = [*(different or ()), peer]
        except ValueError:  # the pages were closed meanwhile
            return ()
        return different or ()

    def announce(self, group: int, position: int, number: int, pages: Pages) -> Sequence[int]:
        """Write which collective this rank is about to do, as `compare` does, but not yet its words: see `put_words`.

        Nobody reads them unless calls differ, and most are over before anybody could.
        """
        tag = (group + position * _SPREAD) & _MASK
        at = (group + position) % SLOTS * _WORDS
        words = self._words
        words[at + 1] = 0  # the words of an earlier call are not this one's
        words[at] = word = tag << 32 | number
        different = None
        try:
            for peer, page in pages.items():
                other = page[at]
                if other != word and other >> 32 == tag:
                    different = [*(different or ()), peer]
        except ValueError:  # the pages were closed meanwhile
            return ()
        return different or ()

    def put_words(self, group: int, position: int, said: Fingerprint) -> None:
        """Write the words of a collective that `announce` has written, unless a later one has taken its slot."""
        at = (group + position) % SLOTS * _WORDS
        if self._words[at] >> 32 == (group + position * _SPREAD) & _MASK:
            start = at * 8 + 8
            self._bytes[start : start + len(said.block)] = said.block

    def withdraw(self, ring: int, group: int, position: int) -> None:
        """Remove what this rank was about to do, and where: it does not do it. A later call there stays."""
        tag = (group + position * _SPREAD) & _MASK
        at = ring * _RING + (group + position) % SLOTS * _WORDS
        place = (PLACES_AT + (group + position) % PLACES * PLACE) // 8
        for start, is_its in ((at, self._words[at] >> 32 == tag), (place, self._words[place] == tag)):
            if is_its:
                self._words[start] = 0
                if self._far_nodes:
                    self._replication.show(self._far_nodes, start * 8, 0, b"", wait=False)

    def number(self, peer: int, ring: int, group: int, position: int) -> int | None:
        """Return the number of what a peer does at a position; None if it does nothing there."""
        page = self._peers.get(peer)
        at = ring * _RING + (group + position) % SLOTS * _WORDS
        with suppress(ValueError):  # the pages were closed meanwhile
            if page is not None and page[at] >> 32 == (group + position * _SPREAD) & _MASK:
                return page[at] & _MASK
        return None

    def text(self, peer: int, ring: int, group: int, position: int) -> str:
        """Return what a peer wrote of a call; empty if it has not arrived there, or is far ahead."""
        page = self._peers.get(peer)
        at = ring * _RING + (group + position) % SLOTS * _WORDS
        if page is None or page[at] >> 32 != (group + position * _SPREAD) & _MASK:
            return ""
        return words_of(page[at + 1 : at + _WORDS].tobytes()) or ""

    def put_place(self, group: int, position: int, where: bytes) -> None:
        """Write what the cell called, and where, as given by `place`. The call is under way, or about to be."""
        start = PLACES_AT + (group + position) % PLACES * PLACE + 8
        self._bytes[start : start + len(where)] = where
        self._words[start // 8 - 1] = word = (group + position * _SPREAD) & _MASK
        if self._far_nodes:
            self._replication.show(self._far_nodes, start - 8, word, where, wait=False)

    def place_of(self, peer: int, group: int, position: int) -> str | None:
        """Return what a peer's cell called at a position; None if it has not written it yet, or is far ahead."""
        page = self._peers.get(peer)
        at = (PLACES_AT + (group + position) % PLACES * PLACE) // 8
        if page is None or page[at] != (group + position * _SPREAD) & _MASK:
            return None
        return words_of(page[at + 1 : at + PLACE // 8].tobytes())

    def hear(
        self, ring: int, group: int, position: int, peers: Iterable[int], over: Callable[[], bool] = lambda: False
    ) -> dict[int, tuple[str, str]]:
        """Return what peers do at a position, and what their cells called; wait a moment for peers about to write.

        Args:
            ring: 0 for collectives, 1 for messages.
            group: as in `compare`.
            position: of the call in the group.
            peers: the ranks to wait for; the wait ends as soon as all of them have written.
            over: whether the wait is no longer needed.

        Returns:
            Both texts for each peer; "" for what is not known.
        """
        peers = list(peers)
        began = news = time.monotonic()
        known, patience = 0, _PATIENCE + _EACH * len(peers)
        while True:
            try:
                heard = {
                    peer: (self.text(peer, ring, group, position), self.place_of(peer, group, position))
                    for peer in peers
                }
            except ValueError:  # the pages were closed meanwhile
                return dict.fromkeys(peers, ("", ""))
            now = time.monotonic()
            missing = sum(not words or where is None for words, where in heard.values())
            told = sum(bool(words) + (where is not None) for words, where in heard.values())
            if told > known:  # many ranks on few cores arrive one after the other
                known, news = told, now
            if not missing or over() or now > min(news + patience, began + _LONGEST_WAIT):
                return {peer: (words, where or "") for peer, (words, where) in heard.items()}
            time.sleep(_LOOK)


def _own_page(folder: Path, rank: int) -> mmap.mmap:
    """Make a page that the peers find in the folder; one that no rank sees if there is no room for it."""
    home = WorldDir(os.environ[HOME_VARIABLE]) if HOME_VARIABLE in os.environ else None
    try:
        return make_page(page_of(folder, rank), home.spare_board if home is not None else None)
    except OSError as error:
        with suppress(OSError):
            page_of(folder, rank).unlink()  # the previous process's
        sentence = (
            f"Rank {rank} could not create its page of shared memory ({error}), so the other ranks do not see where "
            "its calls differ from theirs.\n"
        )
        if home is not None:
            home.add_to_log(rank, sentence)
        return mmap.mmap(-1, PAGE)
