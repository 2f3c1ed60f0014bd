"""Messages of several frames on a Unix stream socket that never blocks.

On the wire, a message is its kind and the number of its frames (4 bytes each), the length of each frame (8 bytes), and
the frames. All numbers are little-endian.

A frame for which there is not enough memory is read and dropped, and a `Lost` stands in its place: the connection is
kept, and the message can be answered.
"""

from __future__ import annotations

import mmap
import socket
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

OTHER, ANSWER, ASK = 0, 1, 2
"""Kinds of messages: an `ASK` is answered soon by an `ANSWER`; the agent waits a moment for those of all ranks."""


@dataclass(frozen=True)
class Lost:
    """Stands in the place of a frame for which there was not enough memory.

    Attributes:
        size: bytes of the frame.
        start: its first bytes.
    """

    size: int
    start: bytes


Message = tuple[int, list[Any]]
"""A message: its kind, and its frames: bytes, writable memoryviews that own their memory, and each `Lost` one."""

_HEAD = struct.Struct("<II")
_LENGTH = struct.Struct("<Q")

_CHUNK = 1 << 18
"""Bytes that are read at once, unless a larger frame is on its way."""

_LITTLE = 1 << 14
"""Bytes that are read at once while no more come: room for a chunk costs the system more than a short message."""

_MOST_AT_ONCE = 1 << 22
"""Bytes of larger frames that are read in one call: others wait for their turn."""

_MOST_WRITTEN = 1 << 22
"""Bytes that are written in one call, for the same reason: a quick reader would take them without end."""

_MAPPED_FROM = 1 << 20
"""Bytes of the smallest frame that has a mapping of its own: a process may have some 65,000 of them."""

_START = 64
"""Bytes that are kept of a frame for which there was not enough memory: they tell which message it is."""

_DROPPED = bytearray(1 << 16)
"""Where such a frame is read to; no more memory is needed for it."""

_MOST_FRAMES = 1 << 24
LARGEST = 1 << 40
"""More than any message has: who sends larger numbers does not speak this language."""

_TOGETHER = 64
"""Frames that are written at once: the system takes no more than 1024."""


@dataclass
class _Large:
    """A large frame that is being read; without room, it is dropped."""

    size: int
    room: memoryview | None
    start: bytes
    filled: int = 0

    def into(self, most: int) -> memoryview:
        """Return where the next bytes go, at most so many."""
        most = min(most, self.size - self.filled)
        if self.room is None:
            return memoryview(_DROPPED)[:most]
        return self.room[self.filled : self.filled + most]

    def fill(self, count: int) -> None:
        """Note that so many bytes have come."""
        if self.room is None:
            self.start += bytes(_DROPPED[: min(count, _START - len(self.start))])
        self.filled += count

    def frame(self) -> memoryview | Lost:
        """Return the frame, now that all of it has come."""
        return self.room if self.room is not None else Lost(self.size, self.start)


def _make_room(size: int) -> memoryview | None:
    """Return memory for a large frame; None if there is not enough.

    Its pages come as it is filled, while other threads go on: to clear a gigabyte before would take a second, in which
    no other thread of Python runs.
    """
    try:
        if size < _MAPPED_FROM:
            return memoryview(bytearray(size))
        return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    except (OSError, MemoryError):
        return None


class FramedSocket:
    """One connected socket, with its buffers.

    Args:
        connection: the socket; it is closed by `close`.
        largest: bytes of the largest message that is accepted.
    """

    def __init__(self, connection: socket.socket, largest: int = LARGEST) -> None:
        connection.setblocking(False)  # noqa: FBT003 - positional only
        self.socket = connection
        self.largest = largest
        self._out: deque[memoryview] = deque()
        self._pending = bytearray()
        self._room = _LITTLE
        self._head: tuple[int, list[int]] | None = None  # the kind and lengths of the message that is being read
        self._frames: list[bytes | memoryview | Lost] = []
        self._large: _Large | None = None

    def fileno(self) -> int:
        """Return the descriptor, for a poll."""
        return self.socket.fileno()

    # ── sending ─────────────────────────────────────────────────────────────────────────────────────

    @property
    def waits(self) -> bool:
        """Whether something is not written yet; call `flush` when the socket can be written, until nothing waits."""
        return bool(self._out)

    def send(self, frames: Sequence[Any], kind: int = OTHER) -> None:
        """Send a message: as much of it now as the system takes, and the rest later.

        Raises:
            OSError: the other side is gone.
        """
        views = [memoryview(frame).cast("B") for frame in frames]
        head = _HEAD.pack(kind, len(views)) + b"".join(_LENGTH.pack(view.nbytes) for view in views)
        small = all(view.nbytes < _CHUNK for view in views)
        self._out.extend([memoryview(b"".join([head, *views]))] if small else [memoryview(head), *views])
        self.flush()

    def flush(self) -> None:
        """Write what the system takes, but not so much that others wait long for their turn.

        Raises:
            OSError: the other side is gone.
        """
        out, left = self._out, _MOST_WRITTEN
        while out:
            while out and not out[0].nbytes:
                out.popleft()
            if not out or left <= 0:
                return
            try:
                sent = self.socket.sendmsg(self._next_out(left))
            except BlockingIOError:
                return
            left -= sent
            while sent:
                first = out.popleft()
                if sent < first.nbytes:
                    out.appendleft(first[sent:])
                    break
                sent -= first.nbytes

    def _next_out(self, most: int) -> list[memoryview]:
        """Return what is written next, at most so many bytes."""
        views = []
        for view in islice(self._out, _TOGETHER):
            views.append(view[:most])
            most -= views[-1].nbytes
            if most <= 0:
                break
        return views

    # ── receiving ───────────────────────────────────────────────────────────────────────────────────

    def receive(self) -> list[Message] | None:
        """Read once from the socket.

        Returns:
            The messages that are complete now: kind and frames. None if there was nothing to read.

        Raises:
            EOFError: the other side is gone, or what it sends is no message.
            OSError: the connection is broken.
        """
        messages: list[Message] = []
        if self._large is None:
            try:
                data = self.socket.recv(self._room)
            except BlockingIOError:
                return None
            if not data:
                raise EOFError
            self._room = _CHUNK if len(data) == self._room else _LITTLE
            self._pending += data
            self._parse_all(messages)
            self._fill(messages)
        elif not self._fill(messages):
            return None
        return messages

    def _fill(self, messages: list[Message]) -> int:
        """Read on in large frames; return how many bytes have come."""
        count = 0
        while self._large is not None and count < _MOST_AT_ONCE:
            try:
                count += self._read_on(self._large, _MOST_AT_ONCE - count)
            except BlockingIOError:
                break
            except (EOFError, OSError):
                if messages:
                    break  # they count; the next call fails again
                raise
            if self._large is None:
                self._parse_all(messages)
        return count

    def _read_on(self, large: _Large, most: int) -> int:
        """Read once into a large frame; return how many bytes have come."""
        count = self.socket.recv_into(large.into(most))
        if not count:
            raise EOFError
        large.fill(count)
        if large.filled == large.size:
            self._large = None
            self._frames.append(large.frame())
        return count

    def _parse_all(self, messages: list[Message]) -> None:
        while self._parse(messages):
            pass

    def _parse(self, messages: list[Message]) -> bool:
        """Take one step in what has been read; return whether another one may be possible."""
        if self._head is None:
            return self._parse_head()
        kind, lengths = self._head
        if len(self._frames) == len(lengths):
            messages.append((kind, self._frames))
            self._head, self._frames = None, []
            return True
        length = lengths[len(self._frames)]
        if len(self._pending) >= length:
            self._frames.append(self._small(length))
            del self._pending[:length]
            return True
        if length > _CHUNK:
            self._large = self._begin_large(length)
        return False

    def _small(self, size: int) -> bytes | Lost:
        try:
            return bytes(memoryview(self._pending)[:size])
        except MemoryError:
            return Lost(size, bytes(self._pending[:_START]))

    def _begin_large(self, size: int) -> _Large:
        """Begin a large frame with what has come of it already."""
        spoiled = any(isinstance(frame, Lost) for frame in self._frames)  # the message is of no use any more
        large = _Large(size, None if spoiled else _make_room(size), bytes(self._pending[:_START]))
        large.filled = len(self._pending)
        if large.room is not None:
            large.room[: large.filled] = self._pending
        self._pending.clear()
        return large

    def _parse_head(self) -> bool:
        if len(self._pending) < _HEAD.size:
            return False
        kind, count = _HEAD.unpack_from(self._pending)
        size = _HEAD.size + count * _LENGTH.size
        if count > _MOST_FRAMES or size > self.largest:
            raise EOFError
        if len(self._pending) < size:
            return False
        lengths = [_LENGTH.unpack_from(self._pending, _HEAD.size + n * _LENGTH.size)[0] for n in range(count)]
        if size + sum(lengths) > self.largest:
            raise EOFError
        del self._pending[:size]
        self._head = kind, lengths
        return True

    def close(self) -> None:
        """Close the socket; what was not written is lost."""
        self.socket.close()
