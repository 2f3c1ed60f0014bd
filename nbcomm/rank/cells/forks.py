"""What a cell forks is an ordinary process: SIGINT is Python's own there, and ``sys.exit`` ends it with its status.

A fork begins with the handlers of its parent. In a child, that of the rank would ask whether the rank's cell may be
interrupted, and cancel the rank's task in place of the child's work.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

_SIGINT = {signal.SIGINT}


def give_back(in_child: Callable[[], None]) -> None:
    """Give SIGINT back to Python in each process that this one forks, from now on.

    The signal waits while a fork is under way, for Python forgets in the child what comes before it has cleaned up
    there, and what comes while it does would spoil that. The hooks get here first and last: those of the standard
    library are older.

    Args:
        in_child: sets the handler.
    """
    forking = threading.local()  # any thread may fork, and has a mask of its own

    def hold_back() -> None:
        forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())  # asked for first: to block may raise, too
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGINT)

    def let_through() -> None:
        mask = forking.__dict__.pop("mask", None)
        if mask is not None:
            # It raises what has been held back, and Python discards that here: the runner repeats it a little later.
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def let_child() -> None:
        try:
            in_child()
        finally:
            let_through()

    os.register_at_fork(before=hold_back, after_in_parent=let_through, after_in_child=let_child)


def end(asked: SystemExit) -> NoReturn:
    """End this process, a child, as ``sys.exit`` ends a program; its parent does at its own end what is due then."""
    status = 0 if asked.code is None else asked.code
    if not isinstance(status, int):
        os.write(2, f"{status}\n".encode(errors="replace"))
        status = 1
    leave(status & 0xFF)


def leave(status: int) -> NoReturn:
    """End this process, a child, and lose nothing that it has printed."""
    for name in ("stdout", "stderr"):
        for stream in (getattr(sys, name, None), getattr(sys, f"__{name}__", None)):
            with suppress(Exception):
                stream.flush()  # type: ignore[union-attr]
    os._exit(status)
