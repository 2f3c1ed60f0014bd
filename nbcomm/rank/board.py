"""A board in shared memory on which each rank writes what it is about to do, before data moves.

Plain gloo answers a wrong shape or dtype by ending the process of a peer, and a wrong reduction by waiting for
ever. So each rank writes a short print of its call on its own page, and then looks at the pages of the other
ranks: whoever is last sees the difference, raises, and does not enter. No rank waits for another here.

A page has two rings of slots, for collectives and for messages; a slot is found by the group and the position
in it, so a rank that ran ahead can still be compared. What is compared fits into one aligned word (32 bits say
which call, 32 bits what it is), which is written at once; the words beside it are only read for the message.
An overwritten slot means one comparison less, never a wrong one.

A page's blocks are taken when it is made: of a sparse file, the first write for which no block is left ends the
process by SIGBUS, and /dev/shm, often small, is everybody's.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..home import HOME_VARIABLE, Home

_SLOTS = 1024
_SLOT = 512
_WORDS = _SLOT // 8
_RING = _SLOTS * _WORDS
_BYTES = 2 * _SLOTS * _SLOT
_TEXT = struct.Struct("<IH")  # crc of the text, its length
_LONGEST = _SLOT - 8 - _TEXT.size
_SPREAD = 0x9E3779B1  # 2**32 / golden ratio (Knuth): neighbouring positions get distant words
_MASK = 0xFFFFFFFF


class Entry(NamedTuple):
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


def entry(number: int, words: str) -> Entry:
    """What is said of a call, ready to be written."""
    text = words.encode()[:_LONGEST]
    return Entry(number, _TEXT.pack(zlib.crc32(text), len(text)) + text)


class Board:
    """This rank's page, and those of the others on this machine.

    Args:
        folder: where the pages are; private to the user.
        rank: whose page is ours; a page that is there is replaced.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder = folder
        self._rank = rank
        self._own = _own_page(folder, rank)
        self._bytes = memoryview(self._own)
        self._words = self._bytes.cast("Q")
        self._maps: list[mmap.mmap] = []
        self._peers: dict[int, memoryview] = {}

    def meet(self, ranks: Iterable[int]) -> None:
        """Look at the pages of these ranks from now on; they must be there, or are on another machine."""
        self.leave()
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
        self, ring: int, group: int, position: int, said: Entry, pages: Mapping[int, memoryview]
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
        raw = page[at + 1 : at + _WORDS].tobytes()
        check, length = _TEXT.unpack_from(raw)
        body = raw[_TEXT.size : _TEXT.size + min(length, _LONGEST)]
        return body.decode(errors="replace") if zlib.crc32(body) == check else ""


def _own_page(folder: Path, rank: int) -> mmap.mmap:
    """Make a page that the peers find in the folder; one that nobody sees if there is room for it nowhere."""
    page = folder / f"board{rank}"
    home = Home(os.environ[HOME_VARIABLE]) if HOME_VARIABLE in os.environ else None
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
            f"Rank {rank} could not make its page of the board ({error}). So the other ranks do not see where its "
            "calls differ from theirs, and a receive from any rank does not find what it sends.\n"
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
