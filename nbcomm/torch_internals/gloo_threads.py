"""Gloo's worker threads, which hold a call's tensors slightly longer than the call lasts."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

_NAME = "pt_gloo_runloop"  # torch's name for them, from 2.11 on
_TASKS = Path("/proc/self/task")
_PAUSE = 0.001
"""Seconds between two checks; the GIL is free meanwhile for a thread that needs it."""

_LOOKS = 2
"""How many checks in a row must find them at rest: a single one may fall between two of their steps."""


def await_workers(patience: float) -> bool:
    """Wait until no worker thread of gloo runs: each waits for work, or for other ranks.

    A worker that drops the last reference to a Python tensor takes the GIL. If the interpreter is ending then, the
    process is aborted, with exit code -6: https://github.com/pytorch/pytorch/issues/190489.

    Args:
        patience: seconds to wait at most.

    Returns:
        Whether they are at rest; True also if the system does not show it (only Linux does).
    """
    until, quiet = time.monotonic() + patience, 0
    while quiet < _LOOKS and time.monotonic() < until:
        time.sleep(_PAUSE)
        quiet = 0 if any(map(_runs, _workers())) else quiet + 1
    return quiet == _LOOKS


def _workers() -> list[Path]:
    with suppress(OSError):  # not Linux
        tasks = {task: _read(task / "comm").strip() for task in _TASKS.iterdir()}
        named = [task for task, name in tasks.items() if name == _NAME]
        return named or _nameless(tasks)
    return []


def _nameless(tasks: dict[Path, str]) -> list[Path]:
    """Return the threads that have the process's name, and that Python has not started: gloo's are among them."""
    known = {str(thread.native_id) for thread in threading.enumerate()}
    process = next((name for task, name in tasks.items() if task.name == str(os.getpid())), "")
    return [task for task, name in tasks.items() if name == process and task.name not in known]


def _runs(worker: Path) -> bool:
    return _read(worker / "stat").rpartition(")")[2].split()[:1] in (["R"], ["D"])


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:  # the thread has just ended
        return ""
