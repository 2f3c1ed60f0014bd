"""The interrupts of one cell are counted, and taken where it is safe.

Python would raise KeyboardInterrupt wherever it is: in the middle of putting the groups in order, or within a lock,
which would then stay taken for ever. So while a cell runs a press only counts; whoever waits for the ranks looks for
it twenty times a second. And who presses ■ twice means one thing: the second press is only sent on.
"""

from __future__ import annotations

import signal
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self


class Presses:
    """Handles SIGINT for as long as the block runs, where that can be done: on the main thread."""

    def __init__(self) -> None:
        self._count = 0
        self._before: Any = None

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

    def _press(self, _number: int, _frame: FrameType | None) -> None:
        self._count += 1
