"""nbcomm's own threads: none of them ends unnoticed.

Such a thread guards its steps itself (see `faults`). But an error between two steps would end the thread, and code
that waits for it would wait forever. So the error is logged and the work is started again. Work that cannot be
done twice instead reports the error to those who wait for it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from .faults import Faults

_REST, _LONGEST_REST = 0.1, 5.0
"""Seconds of pause before work is started again; work that fails at once each time must not occupy a core."""

_WELL = 60.0
"""Seconds after which failing work counts as having worked: it is started again as if it had never failed."""


def keep(
    name: str,
    work: Callable[[], object],
    faults: Faults | None = None,
    *,
    again: float = math.inf,
    lost: Callable[[BaseException], object] = lambda _: None,
) -> threading.Thread:
    """Run work on a daemon thread of its own, until it returns.

    Args:
        name: the thread's name.
        work: the work; it is started again if it raises, so it must be able to resume.
        faults: logs what it raises; by default to stderr.
        again: how many times in a row it is started again; 0 if it cannot be done twice.
        lost: called with the error, on that thread, when the work is not started again.

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
            except BaseException as error:  # noqa: BLE001 - for any error, code may wait for this thread
                with suppress(BaseException):  # telling it may fail, too
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
    """Run work later, on a daemon thread of its own.

    Args:
        seconds: the delay; if the work raises, it is run again after the same delay.
        name: the thread's name.
        work: the work.

    Returns:
        A function that cancels the work, unless it has begun.
    """
    off = threading.Event()

    def waited() -> None:
        if not off.wait(seconds):
            work()

    keep(name, waited)
    return off.set
