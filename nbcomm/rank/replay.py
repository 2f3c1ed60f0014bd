"""A rank's messages about its last request, kept for a notebook that did not receive them."""

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
        most: bytes that are kept; beyond, the oldest output is dropped.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._messages: deque[list[Any]] = deque()
        self._bytes = 0
        self._dropped = False
        self._request: Resume | None = None
        self._ended = False

    def begin(self, run: int, ranks: str) -> None:
        """Begin a request on these ranks: the notebook that sent it has received all about earlier ones."""
        with self._lock:
            self._forget()
            self._request = Resume(run, ranks)

    def add(self, frames: list[Any], *, last: bool = False) -> None:
        """Keep a message about the current request; the last one is its answer."""
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
        """Forget the requests up to this one: a notebook has received all about them."""
        with self._lock:
            if self._request is not None and self._ended and self._request.run <= run:
                self._forget()

    def replay(self) -> list[list[Any]]:
        """Return all messages again, for another notebook; empty if it has missed nothing."""
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
