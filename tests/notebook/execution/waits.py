"""A wait that a signal ends."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_for_ever(begun: Callable[[], object] = lambda: None) -> str:
    """Say that the wait has begun, and wait as Jupyter's input box does, which looks up now and then.

    `signal.pause` would miss a signal that comes just before it: Python's handler runs only when it returns.
    """
    begun()
    while True:
        time.sleep(0.01)
