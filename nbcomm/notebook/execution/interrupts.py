"""The interrupts of one cell, counted, and handled where it is safe.

Python would raise KeyboardInterrupt anywhere: while the groups are being repaired, or inside a lock, which would then
stay taken for ever. So while a cell runs a press only counts; the thread that waits for the ranks checks it twenty
times a second. And two presses of ■ mean one thing: the second one is only passed on.

While a user is asked for input, Jupyter or readline waits, and only an exception ends that wait.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # nobody has stubs of it
import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self


_SIGINT = int(signal.SIGINT)


class InterruptCounter:
    """A handler of SIGINT for the duration of the block, if that is possible: on the main thread.

    Args:
        limit: seconds after which it counts as pressed by itself; None for never.

    Attributes:
        timed_out: it has done so.
    """

    def __init__(self, limit: float | None = None) -> None:
        self._deadline = math.inf if limit is None else time.monotonic() + limit
        self.timed_out = False
        self._count = 0
        self._before: Any = None
        self._breakable = False
        self._breaking = False
        self._missed = False

    def __enter__(self) -> Self:
        with suppress(ValueError):  # another thread: interrupts do not reach it anyway
            # That of `signal` itself looks for a function among the members of an enum first, at many times the cost.
            self._before = _signal.signal(_SIGINT, self._press)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            _signal.signal(_SIGINT, self._before)

    @property
    def limited(self) -> bool:
        """Whether there is a limit."""
        return self._deadline < math.inf

    @property
    def pressed(self) -> bool:
        """Whether there was a press."""
        if not self._count and time.monotonic() > self._deadline:
            self._count, self.timed_out = 1, True
        return self._count > 0

    def again(self) -> bool:
        """Return whether there was another press since the last call."""
        more, self._count = self._count > 1, min(self._count, 1)
        return more

    @property
    def heard(self) -> bool:
        """Whether presses are counted here: inside the block, on the main thread."""
        return self._before is not None

    @contextmanager
    def breakable(self) -> Iterator[None]:
        """Let a press raise KeyboardInterrupt in the block, and count; `break_off` raises it, but does not count.

        What came shortly before the block raises at its begin: in the block nobody would look for it.
        """
        try:
            self._breakable = True
            if self._count or self._missed:
                self._breakable = False
                raise KeyboardInterrupt
            yield
        finally:
            self._breakable = False

    def break_off(self) -> None:
        """End a `breakable` block, from another thread; `settle` must be called after the block."""
        self._breaking = True
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def settle(self) -> None:
        """Wait until the signal of a `break_off` has arrived, which must not hit later code."""
        while self._breaking:
            time.sleep(0.001)
        self._missed = False

    def _press(self, _number: int, _frame: FrameType | None) -> None:
        if self._breaking:
            self._breaking, self._missed = False, not self._breakable
        else:
            self._count += 1
        if self._breakable:
            self._breakable = False  # once: the code that catches it must not be hit while doing so
            raise KeyboardInterrupt
