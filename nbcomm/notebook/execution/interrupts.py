"""The interrupts of one cell are counted, and taken where it is safe.

Python would raise KeyboardInterrupt wherever it is: in the middle of putting the groups in order, or within a lock,
which would then stay taken for ever. So while a cell runs a press only counts; whoever waits for the ranks looks for
it twenty times a second. And who presses ■ twice means one thing: the second press is only sent on.

While a person is asked something, that wait is in Jupyter's hands, or readline's, and ends by an exception only.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self


class InterruptCounter:
    """Handles SIGINT for as long as the block runs, where that can be done: on the main thread."""

    def __init__(self) -> None:
        self._count = 0
        self._before: Any = None
        self._breakable = False
        self._breaking = False

    def __enter__(self) -> Self:
        with suppress(ValueError):  # another thread: interrupts do not reach it anyway
            self._before = signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    @property
    def pressed(self) -> bool:
        """Whether there was a press."""
        return self._count > 0

    def again(self) -> bool:
        """Whether there was a further press since the last time that this was asked."""
        more, self._count = self._count > 1, min(self._count, 1)
        return more

    @property
    def heard(self) -> bool:
        """Whether presses come here: within the block, on the main thread."""
        return self._before is not None

    @contextmanager
    def breakable(self) -> Iterator[None]:
        """While this lasts a press counts, and raises KeyboardInterrupt; and so does `break_off`, which counts not."""
        try:
            self._breakable = True
            yield
        finally:
            self._breakable = False

    def break_off(self) -> None:
        """End a `breakable` block, from another thread; call `settle` behind the block."""
        self._breaking = True
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def settle(self) -> None:
        """Wait until the signal of a `break_off` has come, which must not hit what follows."""
        while self._breaking:
            time.sleep(0.001)

    def _press(self, _number: int, _frame: FrameType | None) -> None:
        if self._breaking:
            self._breaking = False
        else:
            self._count += 1
        if self._breakable:
            self._breakable = False  # once: whoever catches it must not be hit while doing so
            raise KeyboardInterrupt
