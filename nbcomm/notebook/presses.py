"""The interrupts of one cell: the first ends it, and those after it must not spoil how.

Who presses ■ twice means one thing. But Python would raise at the second press wherever it is, in the middle of
putting the groups in order, say. So while a cell runs the first press raises KeyboardInterrupt, and later ones are
counted: whoever waits for the ranks sends them on.
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

    def again(self) -> bool:
        """Whether there was a further press since the last time that this was asked."""
        more, self._count = self._count > 1, min(self._count, 1)
        return more

    def _press(self, _number: int, _frame: FrameType | None) -> None:
        self._count += 1
        if self._count == 1:
            raise KeyboardInterrupt
