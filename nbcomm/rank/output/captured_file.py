"""A descriptor of a rank that writes to a file, from which its text is read."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ...world_dir import FULL

_CHUNK = 1 << 20
_PUNCH_AFTER = 64 << 20
_libc = ctypes.CDLL(None, use_errno=True)
_at_once = ctypes.PyDLL(None)
"""The same, for calls that are over before another thread could have done anything."""

_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02  # linux/falloc.h

_RESERVE, _LEAST = 1 << 15, 1 << 13
"""Bytes on the disk that are taken in advance, and how many must be left of them: others may fill it at any time."""


class CapturedFile:
    """One descriptor that writes to a file, and how far the file has been read.

    C code and child processes may not look whether what they write gets there. So there is room for it in advance; if
    there is none any more, that is said once, and again when it has been lacking anew.

    Args:
        descriptor: which.
        name: of the stream.
        path: of the file.
        say: called with a sentence when what is written is lost, or may be.

    Attributes:
        own: a descriptor of the file that nobody else uses.
        due: the size from which on `release` gives space back.
        known: its size when all of it was read, or was what `keep` wrote: at another size it has something new.
    """

    def __init__(self, descriptor: int, name: str, path: Path, say: Callable[[str], object] = lambda _: None) -> None:
        self.descriptor = descriptor
        self.name = name
        self._path = path
        self._say = say
        self._reserved = 0  # up to where there is room for sure
        self._is_short = False
        self._file = -1
        self._identity = (0, 0)
        self._read = 0
        self.due = _PUNCH_AFTER
        self._rest = b""
        self.own = -1
        self.known = 0
        self._skipped: deque[tuple[int, int]] = deque()  # from where to where it has what `keep` wrote

    def claim(self) -> None:
        """Let the descriptor write to the file from now on; repeated calls change nothing."""
        if self._file >= 0:
            return
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self.own = os.open(self._path, os.O_WRONLY | os.O_APPEND)  # it knows the place of what it has written
        stat = os.fstat(file)
        self._identity = stat.st_dev, stat.st_ino
        self._read = self.known = stat.st_size  # an earlier process of this rank has written the rest
        self._file = file  # last: from now on the link's thread looks at the file
        self.reserve()
        os.dup2(self._file, self.descriptor)

    def heal(self) -> None:
        """Let the descriptor write to the file again if it was closed: else the next file that is opened takes it."""
        if self._file >= 0 and self._leads_here() is None:
            os.dup2(self._file, self.descriptor)

    def _leads_here(self) -> bool | None:
        """Return whether the descriptor writes to the file; None if it is closed."""
        try:
            stat = os.fstat(self.descriptor)
        except OSError:
            return None
        return (stat.st_dev, stat.st_ino) == self._identity

    def flush_c(self) -> None:
        """Write out what C code holds in its own buffer for the descriptor, unless that could take long.

        ``fflush(NULL)`` would wait for each C thread that reads or writes a stream of its own, for as long as it likes.
        """
        stream = _c_stream(self.name) if self._file >= 0 else None
        if stream is None or not _holds_back(stream) or not self._leads_here():  # elsewhere it may be a full pipe
            return
        if _libc.ftrylockfile(stream) == 0:
            try:
                failed = _libc.ferror(stream)  # when its buffer was full, it was written out before
                if _libc.fflush(stream) or failed:
                    _libc.clearerr(stream)
                    self._tell(f"some of what C code wrote to {self.name} is lost", ctypes.get_errno())
            finally:
                _libc.funlockfile(stream)

    def reserve(self, more: int = 0) -> bool:
        """Have room for what is written next, and so many bytes more; return whether there is, as far as is known.

        Where there is none for what others write, that is said.
        """
        size = self.size()
        if self._file < 0 or self._reserved - size >= _LEAST + more:
            return True
        for length in (_RESERVE, _LEAST):
            error = _allocate(self._file, size, length + more)
            if error not in FULL:
                self._reserved = sys.maxsize if error else size + length + more  # it may be that nobody can tell
                self._is_short = False
                return True
        if not (more or self._is_short):
            self._is_short = True
            self._tell("what C code and child processes write may be lost", error)
        return False

    def _tell(self, what: str, error: int) -> None:
        reason = f" ({os.strerror(error)})" if error else ""
        self._say(f"{what}: there is no room for it in {self._path.parent}{reason}. Free some space there.")

    def keep(self, text: str) -> None:
        """Write a text to the file that is shown anyhow: there it outlives the process. `read` leaves it out."""
        data = text.encode(errors="replace") if self._file >= 0 else b""
        if not self.reserve(len(data)):
            return  # it is shown all the same; what is left is for those whose text is nowhere else
        with suppress(OSError):  # the disk is full
            while data:
                count = os.write(self.own, data)
                end = os.lseek(self.own, 0, os.SEEK_CUR)
                self._skipped.append((end - count, end))
                if end - count == self.known:
                    self.known = end
                data = data[count:]

    @property
    def taken(self) -> int:
        """How many bytes of the file are read, or are left out."""
        self._skip()
        return self._read - len(self._rest)

    def _skip(self) -> None:
        while self._skipped and self._skipped[0][0] == self._read:
            self._read = self._skipped.popleft()[1]

    def size(self) -> int:
        """Return how many bytes have been written in all."""
        return os.lseek(self.own, 0, os.SEEK_END) if self._file >= 0 else 0

    def note_read(self, size: int) -> None:
        """Note that it was read up to this size, if it was: `read` may stop before, at a character that is cut."""
        self._skip()
        if self._read >= size:
            self.known = self._read

    def read(self, until: int, *, final: bool) -> str:
        """Return new text, up to a size and at most a chunk; an incomplete character waits unless final."""
        if until <= self._read and not (self._rest and final):
            return ""  # mostly
        self._skip()
        until = min(until, self._skipped[0][0]) if self._skipped else until
        if until > self._read:
            new = os.pread(self._file, min(_CHUNK, until - self._read), self._read)
        elif self._rest and final:
            new = b""
        else:
            return ""
        self._read += len(new)
        final = final and self.size() <= self._read  # otherwise the next chunk has the character's end
        data, self._rest = self._rest + new, b""
        if not final:
            data, self._rest = whole_characters(data)
        return data.decode(errors="replace")

    def release(self, size: int) -> None:
        """Give the space of so many bytes back, which nobody will read any more; the file keeps its length."""
        _fallocate(self._file, _PUNCH_HOLE | _KEEP_SIZE, 0, size)
        self.due = size + _PUNCH_AFTER


def _fallocate(file: int, mode: int, start: int, size: int) -> int:
    """Do what the system's does; return the number of its error, or 0."""
    call = getattr(_libc, "fallocate", None)  # Linux alone has it
    if call is None:
        return errno.ENOSYS
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return ctypes.get_errno() if call(file, mode, start, size) else 0


def _allocate(file: int, start: int, size: int) -> int:
    """Take room on the disk behind the end of a file; return the number of the error, or 0."""
    return _fallocate(file, _KEEP_SIZE, start, size)


@functools.cache
def _c_stream(name: str) -> ctypes.c_void_p | None:
    for symbol in (name, f"__{name}p"):  # as macOS calls it
        with suppress(ValueError):
            return ctypes.c_void_p.in_dll(_libc, symbol)
    return None


def _holds_back(stream: ctypes.c_void_p) -> bool:
    """Return whether there is anything in C's buffer, or an error is noted, as far as that can be seen."""
    pending = getattr(_at_once, "__fpending", None)  # glibc and musl have it
    if pending is None:
        return True
    pending.restype = ctypes.c_size_t
    return bool(pending(stream) or _at_once.ferror(stream))


def whole_characters(data: bytes) -> tuple[bytes, bytes]:
    """Split off a UTF-8 character that is cut at the end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return (data[:-back], data[-back:]) if back < needed else (data, b"")
    return data, b""
