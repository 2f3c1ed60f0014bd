"""What a node offers to ranks: its cores, and its free memory."""

from __future__ import annotations

import os

import psutil


def usable_cores() -> int:
    """Count the cores that this process may run on, and so those that it starts."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_memory() -> int:
    """Return the bytes of memory that new processes can use without swapping."""
    return int(psutil.virtual_memory().available)
