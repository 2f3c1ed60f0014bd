"""Counts what a process does for a cell, or a start: messages, their encodings, wake-ups of other threads, calls.

Put into a kernel and into ranks by a cell; it wraps functions, so that what is counted has no code for that.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import nbcomm

FUNCTIONS = {
    "notebook": {
        "messages to ranks": ("nbcomm.launch.link", "Link.send_each"),
        "answers of ranks": ("nbcomm.notebook.session.message_router", "MessageRouter._end"),
        "orders to nodes": ("nbcomm.launch.link", "Link.order"),
        "wake-ups of the link's thread": ("nbcomm.launch.link", "Link._rouse"),
        "wake-ups of the watch": ("nbcomm.notebook.execution.hang_watch", "HangWatch.hurry"),
    },
    "rank": {
        "messages from the notebook": ("nbcomm.rank.link", "RankLink._take"),
        "messages to the notebook": ("nbcomm.rank.link", "RankLink._say"),
        "wake-ups of the link's thread": ("nbcomm.rank.link", "RankLink._rouse"),
        "wake-ups of the main thread": ("asyncio", "base_events.BaseEventLoop.call_soon_threadsafe"),
    },
}
"""By process and what is counted, the function whose calls are counted: its module, and its name there."""
_OURS = os.path.dirname(nbcomm.__file__)  # noqa: PTH120 - compared with the texts of code objects

_counts: Counter[str] = Counter()


def begin(where: str) -> None:
    """Count from now on, in this process; the calls of our own functions on this thread alone."""
    for what, (module, path) in FUNCTIONS[where].items():
        *owners, name = path.split(".")
        _count(what, functools.reduce(getattr, owners, importlib.import_module(module)), name)
    codec = importlib.import_module("nbcomm.protocol.codec")
    codec._encoder = _Encoder(codec._encoder.encode)
    _count("decodings", codec, "_decoded")
    sys.setprofile(_look)


def take() -> dict[str, int]:
    """Return what was counted since the last time."""
    counts = dict(_counts)
    _counts.clear()
    return counts


def _count(what: str, owner: Any, name: str) -> None:
    function: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(function)
    def counted(*args: Any, **keywords: Any) -> Any:
        _counts[what] += 1
        return function(*args, **keywords)

    setattr(owner, name, counted)


class _Encoder:
    def __init__(self, encode: Callable[[Any], bytes]) -> None:
        self._encode = encode

    def encode(self, message: Any) -> bytes:
        _counts["encodings"] += 1
        return self._encode(message)


def _look(frame: FrameType, event: str, _: Any) -> None:
    if event == "call" and frame.f_code.co_filename.startswith(_OURS):
        _counts["calls of our own functions"] += 1
