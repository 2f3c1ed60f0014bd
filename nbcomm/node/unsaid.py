"""What a rank has written and not said any more when it died: the rest of its captured files.

A rank notes down how much of them it has said (`note`), and for which cell it writes; the agent reads the rest when the
rank has ended (`read`). A death can take what is in a process, but not what is in a file.
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from pathlib import Path

from ..protocol import Output, Text
from ..world_dir import WorldDir

STREAMS = ("stdout", "stderr")

_FORM = struct.Struct("<qqq")  # the cell run, and how many bytes of each file are said

_MOST = 1 << 20
"""Bytes of each file that are read."""


def note(descriptor: int, run: int, said: tuple[int, int]) -> None:
    """Note down, on a rank, for which cell it writes, and how much of its files it has said."""
    with suppress(OSError):  # the disk is full
        os.pwrite(descriptor, _FORM.pack(run, *said), 0)


def read(home: WorldDir, rank: int) -> Output | None:
    """Return what a rank that has ended has not said; None if there is nothing, or it was read before."""
    path = home.captured(rank, "said")
    try:
        run, *said = _FORM.unpack(path.read_bytes())
        path.unlink()
    except (OSError, struct.error):
        return None
    texts = [(stream, _rest(home.captured(rank, stream), at)) for stream, at in zip(STREAMS, said, strict=True)]
    items = [Text(stream, text) for stream, text in texts if text]
    return Output(run, [*items]) if items else None


def _rest(path: Path, at: int) -> str:
    try:
        with path.open("rb") as file:
            begin = max(at, file.seek(0, os.SEEK_END) - _MOST)
            file.seek(begin)
            data = file.read(_MOST)
    except OSError:
        return ""
    return ("(earlier output is not kept)\n" if begin > at else "") + data.decode(errors="replace")
