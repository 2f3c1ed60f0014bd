"""What this process, and those that it starts, may use: cores, memory, processes. A container leaves less than all."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

_GROUPS = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 60
"""Version 1 writes the largest number of pages where there is no limit."""


def usable_cores() -> int:
    """Count the cores that this process may run on, or whose time it may have, where that is less."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, math.ceil(min(_limits("cpu", _cores), default=cores))))


def free_memory() -> int:
    """Return the bytes of memory that new processes can use without swapping."""
    return int(min([psutil.virtual_memory().available, *_limits("memory", _memory)]))


def free_tasks() -> int | None:
    """Return how many more processes and threads this process's group may have; None if that is not limited."""
    left = min(
        _limits("pids", lambda folder: _number(folder / "pids.max") - _number(folder / "pids.current")), default=-1
    )
    return int(left) if left >= 0 else None


def folders(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's group and of those around it, whose limits hold as well.

    In a container the group's path may be the host's, which is not visible; its root is visible then.
    """
    with suppress(OSError, ValueError):
        for line in _GROUPS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            # Version 2 has one hierarchy, version 1 one for each controller.
            root = _ROOT / controller if controllers else _ROOT
            group = root / path.strip("/")
            while group != root:
                yield group
                group = group.parent
            yield root


def _limits(controller: str, left: Callable[[Path], float]) -> list[float]:
    """Return what each group leaves that has a limit."""
    found: list[float] = []
    for folder in folders(controller):
        with suppress(OSError, ValueError, IndexError):  # no such limit here
            found.append(left(folder))
    return found


def _cores(folder: Path) -> float:
    if (folder / "cpu.max").exists():
        quota, period = (folder / "cpu.max").read_text().split()
        return int(quota) / int(period)  # "max" is no number
    left, whole = (_number(folder / f"cpu.cfs_{what}_us") for what in ("quota", "period"))
    if left < 0:
        raise ValueError
    return left / whole


def _memory(folder: Path) -> int:
    if (folder / "memory.max").exists():
        most, used, name = _number(folder / "memory.max"), _number(folder / "memory.current"), "inactive_file"
    else:
        most = _number(folder / "memory.limit_in_bytes")
        used, name = _number(folder / "memory.usage_in_bytes"), "total_inactive_file"
    if most >= _NO_LIMIT:
        raise ValueError
    kept = [
        line.split()[1] for line in (folder / "memory.stat").read_text().splitlines() if line.startswith(f"{name} ")
    ]
    return max(0, most - used + int(kept[0]))


def _number(file: Path) -> int:
    """Read a number; "max", where there is no limit, is none.

    Raises:
        ValueError: it is none.
    """
    return int(file.read_text())
