"""Messages of several frames on a Unix stream socket that never blocks.

On the wire, a message is its kind and the number of its frames (4 bytes each), the length of each frame (8 bytes), and
the frames. All numbers are little-endian.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Sequence
from typing import Any

OTHER, ANSWER, ASK = 0, 1, 2
"""Kinds of messages: an `ASK` is answered soon by an `ANSWER`; the agent waits a moment for those of all ranks."""

Message = tuple[int, list["bytes | bytearray"]]
"""A message: its kind, and its frames."""

_HEAD = struct.Struct("<II")
_LENGTH = struct.Struct("<Q")

_CHUNK = 1 << 18
"""Bytes that are read at once, unless a larger frame is on its way."""

_MOST_AT_ONCE = 1 << 24
"""Bytes of larger frames that are read in one call: others wait for their turn."""

_MOST_FRAMES = 1 << 24
LARGEST = 1 << 40
"""More than any message has: who sends larger numbers does not speak this language."""

_TOGETHER = 64
"""Frames that are written at once: the system takes no more than 1024."""


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
        self._head: tuple[int, list[int]] | None = None  # the kind and lengths of the message that is being read
        self._frames: list[bytes | bytearray] = []
        self._frame: tuple[bytearray, int] | None = None  # a large frame, and how much of it has come

    def fileno(self) -> int:
        """Return the descriptor, for a poll."""
        return self.socket.fileno()

    # ── sending ─────────────────────────────────────────────────────────────────────────────────────

    @property
    def waits(self) -> bool:
        """Whether something is not written yet; call `flush` when the socket can be written."""
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
        """Write what the system takes.

        Raises:
            OSError: the other side is gone.
        """
        out = self._out
        while out:
            while out and not out[0].nbytes:
                out.popleft()
            if not out:
                return
            try:
                sent = self.socket.sendmsg([out[index] for index in range(min(_TOGETHER, len(out)))])
            except BlockingIOError:
                return
            while sent:
                first = out.popleft()
                if sent < first.nbytes:
                    out.appendleft(first[sent:])
                    break
                sent -= first.nbytes

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
        if self._frame is None:
            try:
                data = self.socket.recv(_CHUNK)
            except BlockingIOError:
                return None
            if not data:
                raise EOFError
            self._pending += data
            self._parse_all(messages)
            self._fill(messages)
        elif not self._fill(messages):
            return None
        return messages

    def _fill(self, messages: list[Message]) -> int:
        """Read on in large frames; return how many bytes have come."""
        count = 0
        while self._frame is not None and count < _MOST_AT_ONCE:
            try:
                count += self._read_on(*self._frame)
            except BlockingIOError:
                break
            except (EOFError, OSError):
                if messages:
                    break  # they count; the next call fails again
                raise
            if self._frame is None:
                self._parse_all(messages)
        return count

    def _read_on(self, frame: bytearray, filled: int) -> int:
        """Read once into a large frame; return how many bytes have come."""
        count = self.socket.recv_into(memoryview(frame)[filled:])
        if not count:
            raise EOFError
        self._frame = frame, filled + count
        if filled + count == len(frame):
            self._frame = None
            self._frames.append(frame)
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
            self._frames.append(bytes(memoryview(self._pending)[:length]))
            del self._pending[:length]
            return True
        if length > _CHUNK:
            frame = bytearray(length)
            filled = len(self._pending)
            frame[:filled] = self._pending
            self._pending.clear()
            self._frame = frame, filled
        return False

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
