"""A board in shared memory on which each rank writes what it is about to do, before data moves.

Plain gloo answers a wrong shape or dtype by ending the process of a peer, and a wrong reduction by waiting for
ever. So each rank writes a short print of its call on its own page, and then looks at the pages of the other
ranks: whoever is last sees the difference, raises, and does not enter. No rank waits for another here.

A page has two rings of slots, for collectives and for messages; a slot is found by the group and the position
in it, so a rank that ran ahead can still be compared. What is compared fits into one aligned word (32 bits say
which call, 32 bits what it is), which is written at once; the words beside it are only read for the message.
An overwritten slot means one comparison less, never a wrong one.

Behind the rings a page has *places*: what the cell itself called, and in which line. They are only read for a message,
too, so they are written when the data is on its way already, or by whoever waits for it, and few are kept.

A page's blocks are taken when it is made: of a sparse file, the first write for which no block is left ends the
process by SIGBUS, and /dev/shm, often small, is everybody's.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
import time
import weakref
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ...world_dir import HOME_VARIABLE, WorldDir

_SLOTS = 1024
_SLOT = 512
_WORDS = _SLOT // 8
_RING = _SLOTS * _WORDS
_PLACES = 256
_PLACE = 128
_PLACES_AT = 2 * _SLOTS * _SLOT
_BYTES = _PLACES_AT + _PLACES * _PLACE
_TEXT = struct.Struct("<IH")  # crc of the text, its length
LONGEST = _SLOT - 8 - _TEXT.size
_LONGEST_PLACE = _PLACE - 8 - _TEXT.size
_SPREAD = 0x9E3779B1  # 2**32 / golden ratio (Knuth): neighbouring positions get distant words
_MASK = 0xFFFFFFFF

_PATIENCE, _LOOK = 0.2, 0.001
"""Seconds to wait at most for those who are about to say what they do, and between two looks."""


class Fingerprint(NamedTuple):
    """What is said of a call.

    Attributes:
        number: 32 bits that are equal where calls agree.
        block: the call in words, as it lies on a page; made once for the many calls that are alike.
    """

    number: int
    block: bytes

    @property
    def words(self) -> str:
        """The call in words."""
        return self.block[_TEXT.size :].decode(errors="replace")


def entry(number: int, words: str) -> Fingerprint:
    """What is said of a call, ready to be written."""
    return Fingerprint(number, _block(words, LONGEST))


def place(words: str) -> bytes:
    """What a cell called, and where, ready to be written."""
    return _block(words, _LONGEST_PLACE)


def _block(words: str, longest: int) -> bytes:
    text = words.encode()[:longest]
    return _TEXT.pack(zlib.crc32(text), len(text)) + text


def words_of(raw: bytes) -> str | None:
    """The words of an entry's block or of a place; None where it was written to meanwhile."""
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


class FingerprintBoard:
    """This rank's page, and those of the others on this machine.

    Args:
        folder: where the pages are; private to the user.
        rank: whose page is ours; a page that is there is replaced.

    Attributes:
        shown: the others see our page.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder = folder
        self._rank = rank
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
        """In the child of a fork: it is no rank, so what it does is not for others to see, nor theirs to be compared.

        It writes on a page that nobody sees, which is found out here and costs no call anything.
        """
        self._take(mmap.mmap(-1, _BYTES))
        with suppress(BufferError):  # a thread that is no more was looking at a page
            self.leave()

    def meet(self, ranks: Iterable[int]) -> None:
        """Look at the pages of these ranks from now on; they must be there, or are on another machine."""
        self.leave()
        self.shown = (self._folder / f"board{self._rank}").exists()  # a system may clear such folders at any time
        for rank in ranks:
            if rank == self._rank:
                continue
            with suppress(FileNotFoundError):
                descriptor = os.open(self._folder / f"board{rank}", os.O_RDONLY)
                try:
                    page = mmap.mmap(descriptor, _BYTES, prot=mmap.PROT_READ)
                finally:
                    os.close(descriptor)
                self._maps.append(page)
                self._peers[rank] = memoryview(page).cast("Q")

    def leave(self) -> None:
        """Look at nobody's page any more. Whoever compares at this moment, on another thread, sees no difference."""
        for words in self._peers.values():
            words.release()
        self._peers.clear()
        for page in self._maps:
            page.close()  # at once: a traceback that is kept somewhere would keep its descriptor open
        self._maps.clear()

    def seen(self, ranks: Sequence[int]) -> dict[int, memoryview]:
        """The pages of those of some ranks that can be looked at."""
        return {rank: self._peers[rank] for rank in ranks if rank in self._peers}

    def compare(
        self, ring: int, group: int, position: int, said: Fingerprint, pages: Mapping[int, memoryview]
    ) -> Sequence[int]:
        """Write what this rank is about to do, and return the peers that do something else there.

        Args:
            ring: 0 for collectives, 1 for messages.
            group: 32 bits that say which group, and which of its lives.
            position: of the call in the group.
            said: what it is, and its words for the others' message.
            pages: those of the ranks to compare with, from `seen`.
        """
        tag = (group + position * _SPREAD) & _MASK
        at = ring * _RING + (group + position) % _SLOTS * _WORDS
        number, block = said
        word = tag << 32 | number
        start = at * 8 + 8
        self._bytes[start : start + len(block)] = block
        self._words[at] = word
        different = None
        try:
            for peer, page in pages.items():
                other = page[at]
                if other != word and other >> 32 == tag:
                    different = [*(different or ()), peer]
        except ValueError:  # the pages have been left
            return ()
        return different or ()

    def text(self, peer: int, ring: int, group: int, position: int) -> str:
        """What a peer wrote of a call; empty if it has not come there, or has gone far beyond."""
        page = self._peers.get(peer)
        at = ring * _RING + (group + position) % _SLOTS * _WORDS
        if page is None or page[at] >> 32 != (group + position * _SPREAD) & _MASK:
            return ""
        return words_of(page[at + 1 : at + _WORDS].tobytes()) or ""

    def put_place(self, group: int, position: int, where: bytes) -> None:
        """Write what the cell called, and where: `place`. The call is under way, or about to be."""
        start = _PLACES_AT + (group + position) % _PLACES * _PLACE + 8
        self._bytes[start : start + len(where)] = where
        self._words[start // 8 - 1] = (group + position * _SPREAD) & _MASK

    def place_of(self, peer: int, group: int, position: int) -> str | None:
        """What a peer's cell called there; None if it has not said so yet, or has gone far beyond."""
        page = self._peers.get(peer)
        at = (_PLACES_AT + (group + position) % _PLACES * _PLACE) // 8
        if page is None or page[at] != (group + position * _SPREAD) & _MASK:
            return None
        return words_of(page[at + 1 : at + _PLACE // 8].tobytes())

    def hear(
        self, ring: int, group: int, position: int, peers: Iterable[int], over: Callable[[], bool] = lambda: False
    ) -> dict[int, tuple[str, str]]:
        """What peers do there, in words, and what their cells called; a moment is given to those who are about to come.

        Args:
            ring: 0 for collectives, 1 for messages.
            group: as in `compare`.
            position: of the call in the group.
            peers: whom to wait for; it ends as soon as all of them have come.
            over: whether there is no more need to wait.

        Returns:
            Of each peer both texts; "" for what is not known.
        """
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                heard = {
                    peer: (self.text(peer, ring, group, position), self.place_of(peer, group, position))
                    for peer in peers
                }
            except ValueError:  # the pages have been left
                return dict.fromkeys(peers, ("", ""))
            everyone = all(words and where is not None for words, where in heard.values())
            if everyone or over() or time.monotonic() > deadline:
                return {peer: (words, where or "") for peer, (words, where) in heard.items()}
            time.sleep(_LOOK)


def _own_page(folder: Path, rank: int) -> mmap.mmap:
    """Make a page that the peers find in the folder; one that nobody sees if there is room for it nowhere."""
    page = folder / f"board{rank}"
    home = WorldDir(os.environ[HOME_VARIABLE]) if HOME_VARIABLE in os.environ else None
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        try:
            return _make(page)
        except OSError:
            if home is None:
                raise
            return _make_elsewhere(page, home.spare_board)
    except OSError as error:
        with suppress(OSError):
            page.unlink()  # that of the process before
        sentence = (
            f"Rank {rank} could not create its page of shared memory ({error}), so the other ranks do not see where "
            "its calls differ from theirs.\n"
        )
        if home is not None:
            home.add_to_log(rank, sentence)
        return mmap.mmap(-1, _BYTES)


def _make(page: Path) -> mmap.mmap:
    """Make the file of a page and map it; it is in place only when it is whole."""
    partial = page.with_name(page.name + ".part")
    partial.unlink(missing_ok=True)  # of a process that was killed here
    descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        _allocate(descriptor)
        made = mmap.mmap(descriptor, _BYTES)
        partial.replace(page)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    return made


def _make_elsewhere(page: Path, folder: Path) -> mmap.mmap:
    """Make a page in another folder, and a link to it where the peers look."""
    folder.mkdir(mode=0o700, exist_ok=True)
    made = _make(folder / page.name)
    link = page.with_name(page.name + ".part")
    link.symlink_to(folder / page.name)
    link.replace(page)
    return made


def _allocate(descriptor: int) -> None:
    """Give a new file all its blocks, filled with zeros; raises OSError where there is no room for them."""
    if hasattr(os, "posix_fallocate"):  # macOS has none
        try:
            os.posix_fallocate(descriptor, 0, _BYTES)
        except OSError as error:
            if error.errno not in {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}:  # this file system knows no such call
                raise
        else:
            return
    with open(descriptor, "wb", closefd=False) as file:
        file.write(bytes(_BYTES))
