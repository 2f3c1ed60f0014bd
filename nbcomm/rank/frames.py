"""What the threads of this process do, seen from one of them."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_lock = threading.Lock()


@contextmanager
def of_all_threads() -> Iterator[dict[int, FrameType]]:
    """The frame that each thread is in, by the thread's ident, and those around it, for as long as the block runs.

    No garbage is collected meanwhile. Python 3.11 makes the object of a frame only when it is asked for; if that
    collects garbage, a finalizer may let the other thread go on, and what is read then of its frames is no more: the
    process would end by SIGSEGV. (Python 3.12 collects between two instructions only.)
    """
    with _lock:  # who comes second would find the collector switched off, and on again before its time
        collects = gc.isenabled()
        gc.disable()
        found = sys._current_frames()  # noqa: SLF001 - the only way to see another thread
        try:
            yield found
        finally:
            # Its own frame is in it, and leads back to who holds it: from Python 3.12 on, this circle would keep the
            # frames of all threads, and what the user's functions had in them, until the next collection.
            found.clear()
            if collects:
                gc.enable()
