"""The end of a rank's process: what Python does at the end of a program, and a fork of the zygote cannot do.

An exit would return into the zygote's loop, and to tear the interpreter down beside gloo's and the link's threads
is a crash now and then. So its steps are made here, on the main thread.
"""

from __future__ import annotations

import atexit
import gc
import io
import math
import os
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from ..protocol.requests import NOT_ENDING

_LATE = 1.5
"""Seconds after which an end that does not come is written into the log; the notebook waits a little longer."""


def end(shell: Any) -> NoReturn:
    """Do what Python does at its end, and end the process; main thread.

    It waits for threads that are no daemons, calls the functions that were registered with `atexit` (also those of
    logging, multiprocessing, tempfile), and lets go of the user's variables, so that files are written and closed.
    """
    try:
        for step in (_spare_torch, threading._shutdown, atexit._run_exitfuncs, lambda: _let_go(shell), _flush):  # type: ignore[attr-defined]  # noqa: SLF001
            with suppress(BaseException):  # it was printed, or nobody is left to hear of it
                step()
    finally:
        os._exit(0)


def _spare_torch() -> None:
    """Let torch keep the operators that it would take out of its tables, one by one: that is most of an end's time."""
    for one in [*weakref.finalize._registry]:  # type: ignore[attr-defined]  # noqa: SLF001 - the only list
        found = one.peek()
        if found is not None and found[1].__module__ == "torch.library":
            one.atexit = False


def _let_go(shell: Any) -> None:
    """Let go of the user's variables: what only they hold ends by its ``__del__``, as generators and files do."""
    namespace = shell.user_ns
    for name in [*namespace]:
        namespace.pop(name, None)
    shell.history_manager.output_hist.clear()
    sys.last_value = sys.last_traceback = None
    gc.collect()


def _flush() -> None:
    """Write what is buffered in files that something else still holds, such as a module or a thread."""
    for stream in [one for one in gc.get_objects() if isinstance(one, io.TextIOWrapper | io.BufferedWriter)]:
        with suppress(Exception):
            if not stream.closed and stream.writable():
                stream.flush()


class Ending:
    """The end of a process as its link's thread sees it.

    Args:
        tell: writes into the rank's log.

    Attributes:
        begun: the main thread was told to end.
    """

    def __init__(self, tell: Callable[[str], object]) -> None:
        self._tell = tell
        self._until = math.inf
        self.begun = False

    def begin(self) -> None:
        """Note that the main thread was told to end."""
        self.begun = True
        self._until = time.monotonic() + _LATE

    def look(self) -> None:
        """Write into the log what the main thread is doing, if it does not end."""
        if time.monotonic() > self._until:
            self._until = math.inf
            self._tell(f"{NOT_ENDING}{_where(threading.main_thread().ident or 0)}\n")


def _where(ident: int) -> str:
    """Return where a thread is: the innermost line that is no part of Python or a library, if there is one."""
    frame = innermost = sys._current_frames().get(ident)  # noqa: SLF001 - the only way
    while frame is not None and frame.f_code.co_filename.startswith((sys.prefix, sys.base_prefix, "<frozen")):
        frame = frame.f_back
    if frame is None or "nbcomm" in str(frame.f_globals.get("__name__")):
        frame = innermost
    if frame is None:
        return "C code"
    if frame.f_globals.get("__name__") == "threading":  # it waits for those that are no daemons
        names = [thread.name for thread in threading.enumerate() if not thread.daemon and thread.ident != ident]
        return f"a wait for {', '.join(names)}"
    file = re.sub(r"^<ipython-input-(\d+)-.*", r"In[\1]", frame.f_code.co_filename)
    return f"{frame.f_code.co_name}, line {frame.f_lineno} of {file}"
