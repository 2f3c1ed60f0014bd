"""Lack of memory: which processes the system kills first, and how many it has killed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_GROUPS = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")


def offer() -> None:
    """Mark this process, so that the system kills it before unmarked processes when memory runs out."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")


def kills() -> int:
    """Count the processes of this control group that the system has killed because memory ran out.

    Returns:
        Their number; 0 also if the system does not report it.
    """
    for file in _files():
        with suppress(OSError, ValueError, StopIteration):
            return int(next(line for line in file.read_text().splitlines() if line.startswith("oom_kill ")).split()[1])
    return 0


def _files() -> Iterator[Path]:
    """Yield files that may have the count; in a container the group's path may be the host's, which is not visible."""
    with suppress(OSError, ValueError):
        for line in _GROUPS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            below = path.strip("/")
            if not controllers:  # version 2: one hierarchy
                yield from (_ROOT / below / "memory.events", _ROOT / "memory.events")
            elif "memory" in controllers.split(","):
                yield from (_ROOT / "memory" / below / "memory.oom_control", _ROOT / "memory/memory.oom_control")
