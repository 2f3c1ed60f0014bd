"""Memory that runs out: whom the system is to end first, and how one learns that it did."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_GROUPS = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")


def offer() -> None:
    """Where memory runs out, this process is to be ended before those that have not said so."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")


def kills() -> int:
    """Count the processes of this control group that the system has killed because memory ran out.

    Returns:
        How many; 0 also where the system does not say.
    """
    for file in _files():
        with suppress(OSError, ValueError, StopIteration):
            return int(next(line for line in file.read_text().splitlines() if line.startswith("oom_kill ")).split()[1])
    return 0


def _files() -> Iterator[Path]:
    """Where the count may stand; in a container the group's path may be that of the host, which is not seen."""
    with suppress(OSError, ValueError):
        for line in _GROUPS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            below = path.strip("/")
            if not controllers:  # version 2: one hierarchy
                yield from (_ROOT / below / "memory.events", _ROOT / "memory.events")
            elif "memory" in controllers.split(","):
                yield from (_ROOT / "memory" / below / "memory.oom_control", _ROOT / "memory/memory.oom_control")
