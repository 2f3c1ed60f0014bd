"""How a message travels: whole, or in chunks if it is large, and only so much at once as the other side has taken.

ZeroMQ ends the process where it has no memory for a message. So it gets only small ones: a large message is cut, and
put together where it arrives in memory that may be lacking. A frame for which there is not enough is dropped, and a
`Lost` stands in its place: the connection is kept, and the message can be answered.

What is under way is bounded, too: what a stopped process does not take waits in the stream (`streams`), which knows
what to drop. The receiver says now and then how much it has taken; that is a header without anything behind it.

Nothing here does input or output, or knows a clock.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from .streams import Header, Sent

CHUNK = 1 << 20
"""Bytes that travel at once: the C library finds room for so much where a process may have no more memory."""

WINDOW = 16 << 20
"""Bytes that may be under way before the other side has said that it has taken some."""

_LARGEST = 1 << 40
"""More bytes than any message has."""

_MAPPED_FROM = 1 << 20
"""Bytes of the smallest frame that has a mapping of its own: a process may have some 65,000 of them."""

_START = 64
"""Bytes that are kept of a frame for which there was not enough memory: they tell which message it is."""


class Piece(Header, array_like=True, frozen=True):
    """A header that also says which part of its message stands behind it.

    Attributes:
        sizes: on the first part of a message that is cut: the bytes of each of its frames; empty otherwise.
        at: how many bytes of the message came before this part. Where nothing stands behind the header: how many bytes
            of the next message its sender has taken.
    """

    sizes: list[int] = []
    at: int = 0


@dataclass(frozen=True)
class Lost:
    """Stands in the place of a frame for which there was not enough memory.

    Attributes:
        size: bytes of the frame.
        start: its first bytes.
    """

    size: int
    start: bytes


def make_room(size: int) -> memoryview | None:
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


def size_of(frames: Iterable[Any]) -> int:
    """Return how many bytes some frames have."""
    return sum(len(frame) if type(frame) is bytes else memoryview(frame).nbytes for frame in frames)


class _Flying:
    """A message that is under way, or a part of it."""

    def __init__(self, sent: Sent) -> None:
        self.sent = sent
        self.bytes = 0
        self.taken = 0


class Sending:
    """What one side sends of its numbered messages, as far as the other side takes it.

    Args:
        chunk: bytes that travel at once.
        window: bytes that may be under way.
    """

    def __init__(self, chunk: int = CHUNK, window: int = WINDOW) -> None:
        self._chunk = chunk
        self._window = window
        self.clear()

    def clear(self) -> None:
        """Begin again: the stream passes on anew what was not heard."""
        self._queue: deque[Sent] = deque()
        self._views: list[memoryview] = []  # of the first one in the queue, if it is cut
        self._at = 0
        self._flying: deque[_Flying] = deque()
        self._under_way = 0

    @property
    def idle(self) -> bool:
        """Whether all that was added has left."""
        return not self._queue

    @property
    def open(self) -> bool:
        """Whether more may leave now."""
        return self._under_way < self._window

    def add(self, sent: Iterable[Sent]) -> None:
        """Send messages behind all that were added before."""
        self._queue.extend(sent)

    def hear(self, heard: int, part: int = 0) -> None:
        """Note the number of the last message that the other side has heard, and how much it has of the next one."""
        while self._flying and self._flying[0].sent.number <= heard:
            gone = self._flying.popleft()
            self._under_way -= gone.bytes - gone.taken
        if part and self._flying and self._flying[0].sent.after == heard:
            first = self._flying[0]
            taken = min(part, first.bytes)
            if taken > first.taken:
                self._under_way -= taken - first.taken
                first.taken = taken

    def leaving(self, header: Callable[[Sent], Header]) -> Iterator[tuple[Header, Sequence[Any]]]:
        """Return what may leave now: the header of each part, and its frames.

        Args:
            header: makes that of a message.
        """
        while self._queue and self.open:
            sent = self._queue[0]
            if self._at:
                yield self._next_part(header(sent))
                continue
            size = size_of(sent.frames)
            self._flying.append(_Flying(sent))
            if size > self._chunk:
                self._views = [memoryview(frame).cast("B") for frame in sent.frames]
                yield self._next_part(header(sent), [view.nbytes for view in self._views])
                continue
            self._queue.popleft()
            self._note(size)
            yield header(sent), sent.frames

    def _next_part(self, header: Header, sizes: Sequence[int] = ()) -> tuple[Header, Sequence[Any]]:
        """Cut off the next part of the first message in the queue."""
        part: list[memoryview] = []
        at, room = self._at, self._chunk
        while room and self._views:
            first = self._views[0]
            part.append(first[:room])
            room -= part[-1].nbytes
            self._views[:1] = [first[part[-1].nbytes :]] if part[-1].nbytes < first.nbytes else []
        while self._views and not self._views[0].nbytes:  # the other side knows of these by their sizes
            self._views.pop(0)
        self._at += self._chunk - room
        self._note(self._chunk - room)
        if not self._views:
            self._queue.popleft()
            self._at = 0
        fields = (header.session_id, header.incarnation, header.number, header.after, header.heard, header.acknowledged)
        return Piece(*fields, [*sizes], at), part

    def _note(self, size: int) -> None:
        self._flying[-1].bytes += size
        self._under_way += size


class Receiving:
    """What one side receives: it puts large messages together, and knows when to tell how much it has taken.

    Args:
        window: that of the other side's `Sending`.
    """

    def __init__(self, window: int = WINDOW) -> None:
        self._often = window // 4
        self.clear()

    def clear(self) -> None:
        """Forget a message that has come in part: the connection is another one."""
        self._unsaid = 0
        self._cut: _Cut | None = None

    def take(self, piece: Piece, frames: Sequence[Any]) -> Sequence[Any] | None:
        """Take what has come.

        Args:
            piece: its header.
            frames: what stands behind that.

        Returns:
            The frames of the message, if it is complete now: those that were given, or writable memoryviews that own
            their memory, and each `Lost` one.

        Raises:
            msgspec.DecodeError: it is no part of a message.
        """
        self._unsaid += size_of(frames)
        if not (piece.sizes or piece.at):
            if piece.number:
                self._cut = None
            return frames
        key = piece.session_id, piece.incarnation, piece.number
        if piece.sizes:
            self._cut = None  # its memory may be needed
            self._cut = _Cut(key, piece.sizes)
        cut = self._cut
        if cut is None or cut.key != key or cut.filled != piece.at:
            self._cut = None  # a part is missing: the stream will miss the message
            return None
        for frame in frames:
            cut.fill(memoryview(frame).cast("B"))
        if cut.filled < cut.size:
            return None
        self._cut = None
        return cut.frames()

    def due(self) -> int | None:
        """Return what is to be told now: how much has come of the message that is not complete; None if nothing is."""
        if self._unsaid < self._often:
            return None
        self._unsaid = 0
        return self._cut.filled if self._cut is not None else 0


class _Cut:
    """A message that comes in parts."""

    def __init__(self, key: tuple[int, int, int], sizes: Sequence[int]) -> None:
        if min(sizes) < 0 or sum(sizes) > _LARGEST:
            raise msgspec.DecodeError("A message has no frames of such a size.")
        self.key = key
        self.size = sum(sizes)
        self.filled = 0
        self._sizes = sizes
        self._rooms: list[memoryview | None] = []
        for size in sizes:
            self._rooms.append(make_room(size))
            if self._rooms[-1] is None:  # of no use without it, so the others' room is not taken either
                large = (each >= _MAPPED_FROM for each in sizes)
                self._rooms = [None if which else room for which, room in zip(large, self._rooms, strict=False)]
        self._starts = [b""] * len(sizes)
        self._place = self._offset = 0

    def fill(self, data: memoryview) -> None:
        """Take the next bytes."""
        if data.nbytes > self.size - self.filled:
            raise msgspec.DecodeError("A message has more bytes than it said.")
        self.filled += data.nbytes
        while data.nbytes:
            left = self._sizes[self._place] - self._offset
            if not left:
                self._place, self._offset = self._place + 1, 0
                continue
            now, data = data[:left], data[left:]
            room = self._rooms[self._place]
            if room is not None:
                room[self._offset : self._offset + now.nbytes] = now
            elif len(self._starts[self._place]) < _START:
                self._starts[self._place] += bytes(now[: _START - len(self._starts[self._place])])
            self._offset += now.nbytes

    def frames(self) -> list[Any]:
        """Return the frames, now that all of it has come."""
        parts = zip(self._rooms, self._sizes, self._starts, strict=True)
        return [room if room is not None else Lost(size, start) for room, size, start in parts]
