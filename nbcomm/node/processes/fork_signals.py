"""Signals that end a process, while the daemon forks, and while a process ends the world.

A fork begins with the handlers of its parent. What arrives before Python has cleaned up in the child is forgotten, and
what arrives after that would run the daemon's handler there: it would end the world in its place.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def held_back() -> Iterator[None]:
    """Let them wait in the block, in which this process forks, and notes the child; the child calls `let_through`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


def let_through() -> None:
    """Give up the daemon's handlers, in its child: what has been held back does what it does by itself."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, *ENDING, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


def ignore() -> None:
    """Do not let them end this process any more: it is about to end, and has something to tidy before."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
