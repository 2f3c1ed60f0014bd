"""What the threads of this process do, seen from one of them."""

from __future__ import annotations

import asyncio
import functools
import gc
import selectors
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_JOIN = threading.__file__
"""Where a thread is that waits for another one: for its end, its result, or an item of a queue."""

_LOOP = asyncio.base_events.__file__
"""The same, one frame further out, where a cell awaits what a thread does, as with `asyncio.to_thread`."""

TIMER = threading.Timer.run.__code__
"""The code that a thread is in if it will call something later."""

_CALLS = ("nbcomm", "torch")
"""Packages whose functions may be collectives."""

_lock = threading.Lock()


@contextmanager
def of_all_threads() -> Iterator[dict[int, FrameType]]:
    """Give the current frame of each thread, by the thread's ident, for as long as the block runs.

    No garbage is collected meanwhile. Python 3.11 makes the object of a frame only when it is asked for. If that
    collects garbage, a finalizer may let the other thread continue, and the frames that are read then no longer exist:
    the process would end by SIGSEGV. (Python 3.12 collects between two instructions only.)
    """
    with _lock:  # a second caller would find the collector switched off, and switch it on too early
        collects = gc.isenabled()
        gc.disable()
        found = sys._current_frames()  # noqa: SLF001 - the only way to see another thread
        try:
            yield found
        finally:
            # This function's own frame is in the dict, and refers back to its holder: from Python 3.12 on, this cycle
            # would keep the frames of all threads, and the variables of the user's functions, until the next
            # collection.
            found.clear()
            if collects:
                gc.enable()


def may_join(main: FrameType | None) -> bool:
    """Return whether a thread may wait for another one, for its end or a value; or its event loop for anything."""
    if main is None or main.f_code.co_filename == _JOIN:
        return main is not None
    outer = main.f_back if main.f_code.co_filename == selectors.__file__ else None
    return outer is not None and outer.f_code.co_filename == _LOOP


def is_timer_of(frame: FrameType, scope: dict[str, Any] | None) -> bool:
    """Return whether a frame is of a timer that will call a function with these globals, or a collective."""
    if frame.f_code is not TIMER:
        return False
    function = frame.f_locals["self"].function
    if isinstance(function, functools.partial):
        function = function.func
    if getattr(function, "__globals__", None) is scope:
        return True
    return str(getattr(function, "__module__", "")).partition(".")[0] in _CALLS
