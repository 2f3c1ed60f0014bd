"""Threads of nbcomm's own: none of them ends unseen.

Such a thread guards its steps itself (see `faults`). But what raises between two of them would end the thread, and
whoever waits for it would wait for ever. So each is kept: what ends it is logged, and its work is begun again, or,
where it cannot be done twice, whoever waits for it is told.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from .faults import Faults

_REST, _LONGEST_REST = 0.1, 5.0
"""Seconds of rest before work is begun again; what fails at once, again and again, must not take a core."""

_WELL = 60.0
"""Seconds after which work that fails has been good: it is begun again as if it had never failed."""


def keep(
    name: str,
    work: Callable[[], object],
    faults: Faults | None = None,
    *,
    again: float = math.inf,
    lost: Callable[[BaseException], object] = lambda _: None,
) -> threading.Thread:
    """Do some work on a daemon thread of its own, until it returns.

    Args:
        name: of the thread.
        work: where it raises, it is begun again; so it must be able to take up what it has left.
        faults: writes down what it raises; by default to stderr.
        again: so many times in a row it is begun again; 0 if it cannot be done twice.
        lost: told why it is not begun again, on that thread.

    Returns:
        The thread, which has been started.
    """
    logged = faults or Faults()

    def kept() -> None:
        failed = 0
        while True:
            began = time.monotonic()
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - whatever it is, somebody may wait for this thread
                logged.log(f"the thread {name} failed", error)
                failed = 1 if time.monotonic() - began > _WELL else failed + 1
                if failed > again:
                    lost(error)
                    return
            else:
                return
            time.sleep(min(_REST * 2 ** min(failed - 1, 9), _LONGEST_REST))

    thread = threading.Thread(target=kept, name=name, daemon=True)
    thread.start()
    return thread


def after(seconds: float, name: str, work: Callable[[], object]) -> Callable[[], None]:
    """Do some work later, on a daemon thread of its own.

    Args:
        seconds: until then; where it raises, it is done again after as long.
        name: of the thread.
        work: what is done.

    Returns:
        What calls it off, as long as it has not begun.
    """
    off = threading.Event()

    def waited() -> None:
        if not off.wait(seconds):
            work()

    keep(name, waited)
    return off.set
