"""The notebook's clock, on a rank: times that ranks of several machines tell can be compared."""

from __future__ import annotations

import time


class NotebookClock:
    """This machine's clock, less what it is ahead of the notebook's.

    Attributes:
        ahead: seconds; the notebook measures them whenever it lets the groups form.
    """

    ahead = 0.0

    def now(self) -> float:
        """Return the time as `time.time` gives it on the notebook's machine."""
        return time.time() - self.ahead


clock = NotebookClock()
