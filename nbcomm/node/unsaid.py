"""What a rank has written and not said any more when it died: the rest of its captured files.

A rank notes down how much of them the notebook has heard (`note`), and for which cell it writes; the daemon reads the
rest when the rank has ended (`read`). The notebook leaves out what it has heard since (`protocol.nodes.unheard`). A
death can take what is in a process, but not what is in a file.
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from pathlib import Path

from ..protocol.nodes import Unsaid, UnsaidText
from ..world_dir import WorldDir

STREAMS = ("stdout", "stderr")

_FORM = struct.Struct("<qqq")  # the cell run, and how many bytes of each file are said

_READ = _FORM.pack(-1, -1, -1)
"""What stands there when it was read: the next process of the rank needs the same room, and there may be no other."""

_MOST = 1 << 20
"""Bytes of each file that are read."""


def note(descriptor: int, run: int, said: tuple[int, int]) -> bool:
    """Note down, on a rank, for which cell it writes, and how much of its files it has said; return whether it is."""
    with suppress(OSError):  # the disk is full
        return os.pwrite(descriptor, _FORM.pack(run, *said), 0) == _FORM.size
    return False


def read(home: WorldDir, rank: int) -> Unsaid | None:
    """Return what a rank that has ended has not said; None if there is nothing, or it was read before."""
    try:
        with home.captured(rank, "said").open("r+b", buffering=0) as file:
            noted = file.read()
            run, *said = _FORM.unpack(noted)
            os.pwrite(file.fileno(), _READ, 0)
    except (OSError, struct.error):
        return None
    if noted == _READ:
        return None
    texts = [_rest(home.captured(rank, stream), stream, at) for stream, at in zip(STREAMS, said, strict=True)]
    return Unsaid(run, texts) if any(text.data for text in texts) else None


def _rest(path: Path, stream: str, at: int) -> UnsaidText:
    try:
        with path.open("rb") as file:
            begin = max(at, file.seek(0, os.SEEK_END) - _MOST)
            file.seek(begin)
            data = file.read(_MOST)
    except OSError:
        return UnsaidText(stream, at, at, b"")
    return UnsaidText(stream, at, begin, data)
