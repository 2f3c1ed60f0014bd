"""Whether a process ends with its parent. Only Linux can do that."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent() -> None:
    """Let the system kill this process when its parent dies."""
    _set(signal.SIGKILL)


def die_with(parent: int) -> None:
    """Let the system kill this process when its parent dies, and end now if it has died before."""
    die_with_parent()
    if os.getppid() != parent:
        os._exit(1)


def die_with_forker() -> None:
    """Do the same in each process that this one forks, and those that they fork."""
    here = os.getpid()

    def follow() -> None:
        nonlocal here
        die_with(here)
        here = os.getpid()

    os.register_at_fork(after_in_child=follow)


def outlive_parent() -> None:
    """Undo `die_with_parent`."""
    _set(0)


def _set(number: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
