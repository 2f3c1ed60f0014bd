"""The files of the board: a page for each rank, in shared memory, that every process of its node can map.

Ranks write on their own pages and read the others' (`rank.collectives.fingerprints`). The pages of ranks on other nodes
are copies, which the node's daemon writes (`node.page_copies`).

A page's blocks are allocated when it is made. In a sparse file, the first write for which no block is left would end
the process by SIGBUS, and /dev/shm is often small and used by every process.
"""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

SLOTS, SLOT = 1024, 512
"""Slots of each of the two rings of a page, and bytes of a slot."""

PLACES, PLACE = 256, 128
"""Places behind the rings, and bytes of one."""

PLACES_AT = 2 * SLOTS * SLOT
PAGE = PLACES_AT + PLACES * PLACE
"""Bytes of a page."""


def page_of(folder: Path, rank: int) -> Path:
    """Return the path of a rank's page."""
    return folder / f"board{rank}"


def make_page(page: Path, spare: Path | None) -> mmap.mmap:
    """Make a new page and map it; it appears when it is complete, in the place of an earlier one.

    Args:
        page: its path.
        spare: another folder, if there may be no room where it belongs; a link leads there.

    Raises:
        OSError: there is no room for it.
    """
    page.parent.mkdir(mode=0o700, exist_ok=True)
    try:
        return _make(page)
    except OSError:
        if spare is None:
            raise
    spare.mkdir(mode=0o700, exist_ok=True)
    made = _make(spare / page.name)
    link = page.with_name(page.name + ".part")
    link.symlink_to(spare / page.name)
    link.replace(page)
    return made


def open_page(page: Path) -> mmap.mmap:
    """Map a page that is there, to write on it, too.

    Raises:
        OSError: it is not there.
        ValueError: it is no page.
    """
    descriptor = os.open(page, os.O_RDWR)
    try:
        return mmap.mmap(descriptor, PAGE)
    finally:
        os.close(descriptor)


def _make(page: Path) -> mmap.mmap:
    partial = page.with_name(page.name + ".part")
    partial.unlink(missing_ok=True)  # of a process that was killed here
    descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        _allocate(descriptor)
        made = mmap.mmap(descriptor, PAGE)
        partial.replace(page)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    return made


def _allocate(descriptor: int) -> None:
    """Allocate all blocks of a new file, filled with zeros; raise OSError if there is no room for them."""
    if hasattr(os, "posix_fallocate"):  # macOS does not have it
        try:
            os.posix_fallocate(descriptor, 0, PAGE)
        except OSError as error:
            if error.errno not in {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}:  # the file system does not support it
                raise
        else:
            return
    with open(descriptor, "wb", closefd=False) as file:
        file.write(bytes(PAGE))
