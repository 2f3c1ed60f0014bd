"""Whether a process ends with its parent. Only Linux can do that."""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent() -> None:
    """Let the system kill this process when its parent dies."""
    _set(signal.SIGKILL)


def outlive_parent() -> None:
    """Undo `die_with_parent`."""
    _set(0)


def _set(number: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
