"""The notebook's clock, on a rank: times that ranks of several machines tell can be compared."""

from __future__ import annotations

import time
from collections.abc import Callable


class NotebookClock:
    """This machine's clock, less what it is ahead of the notebook's.

    Attributes:
        now: returns the time as `time.time` gives it on the notebook's machine; on that machine it is `time.time`.
    """

    now: Callable[[], float]

    def __init__(self) -> None:
        self.ahead = 0.0

    @property
    def ahead(self) -> float:
        """Seconds; the notebook measures them whenever it lets the groups form."""
        return self._ahead

    @ahead.setter
    def ahead(self, seconds: float) -> None:
        self._ahead = seconds
        self.now = (lambda: time.time() - seconds) if seconds else time.time


clock = NotebookClock()
