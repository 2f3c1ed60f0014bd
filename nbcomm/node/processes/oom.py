"""Lack of memory: which processes the system kills first, and how many it has killed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from .resources import folders


def offer() -> None:
    """Mark this process, so that the system kills it before unmarked processes when memory runs out."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")


def kills() -> int:
    """Count the processes of this control group that the system has killed because memory ran out.

    Returns:
        Their number; 0 also if the system does not report it.
    """
    for folder in folders("memory"):
        for name in ("memory.events", "memory.oom_control"):  # of version 2 and of version 1
            with suppress(OSError, ValueError, StopIteration):
                lines = (folder / name).read_text().splitlines()
                return int(next(line for line in lines if line.startswith("oom_kill ")).split()[1])
    return 0
