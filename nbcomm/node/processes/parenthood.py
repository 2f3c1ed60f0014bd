"""Whether a process ends with its parent, and whose children orphans are. Only Linux lets a process choose."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h

PARENT = "NBCOMM_PARENT"
"""The environment variable that tells a program, which is to end with its parent, the pid of that."""


def die_with_parent() -> None:
    """Let the system kill this process when its parent dies."""
    _set(signal.SIGKILL)


def die_with(parent: int) -> None:
    """Let the system kill this process when its parent dies, and end now if it has died before."""
    die_with_parent()
    if os.getppid() != parent:
        os._exit(1)


def die_with_starter() -> None:
    """Let this program, and each process that it forks, end with the process that has started it as `PARENT`."""
    if PARENT in os.environ:
        die_with(int(os.environ.pop(PARENT)))
    here = os.getpid()

    def follow() -> None:
        nonlocal here
        die_with(here)
        here = os.getpid()

    os.register_at_fork(after_in_child=follow)


def adopt_orphans() -> None:
    """Make this process the parent of all that its children leave behind: it learns how they end."""
    _set(1, _PR_SET_CHILD_SUBREAPER)


def _set(number: int, what: int = _PR_SET_PDEATHSIG) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(what, number, 0, 0, 0)
