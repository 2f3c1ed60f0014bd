"""What a rank has said of its last request, kept for a notebook that was not there to hear it."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from ..protocol import Output, Resume, Text
from ..protocol.codec import encode

_MOST = 64 << 20
"""Bytes that are kept of one request's output."""


class Replay:
    """The messages about one request, in order; any thread.

    Args:
        most: bytes that are kept; beyond, the oldest output goes.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._messages: deque[list[Any]] = deque()
        self._bytes = 0
        self._dropped = False
        self._request: Resume | None = None
        self._ended = False

    def begin(self, run: int, ranks: list[int]) -> None:
        """A request begins: whoever gave it has heard of those before."""
        with self._lock:
            self._forget()
            self._request = Resume(run, ranks)

    def add(self, frames: list[Any], *, last: bool = False) -> None:
        """Keep a message about the present request; the last one is its answer."""
        with self._lock:
            if self._request is None:
                return
            self._messages.append(frames)
            self._bytes += _size(frames)
            self._ended |= last
            while self._bytes > self._most and len(self._messages) > 1:
                self._bytes -= _size(self._messages.popleft())
                self._dropped = True

    def seen(self, run: int) -> None:
        """A notebook has heard all about the requests up to this one."""
        with self._lock:
            if self._request is not None and self._ended and self._request.run <= run:
                self._forget()

    def replay(self) -> list[list[Any]]:
        """All messages again, for another notebook; empty if it has missed nothing."""
        with self._lock:
            if self._request is None:
                return []
            gap = Output(self._request.run, [Text("stderr", "(earlier output is not kept)\n")])
            return [[encode(self._request)], *([[encode(gap)]] if self._dropped else []), *map(list, self._messages)]

    def _forget(self) -> None:
        self._messages.clear()
        self._bytes, self._dropped, self._ended, self._request = 0, False, False, None


def _size(frames: list[Any]) -> int:
    return sum(memoryview(frame).nbytes for frame in frames)
