"""How much of the machine's memory a process takes.

Forked ranks share the pages of torch and of all that was imported before the fork. Resident memory (RSS) counts such a
page in full on every rank; proportional memory (PSS) counts each rank's part of it, so that the ranks' figures add up.
But the system goes through every page for PSS, which takes milliseconds where RSS takes microseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import psutil

_ROLLUP = Path("/proc/self/smaps_rollup")

_COST = 500
"""After a reading of PSS so many times as long passes before the next one: it may take 0.2 % of a core."""

_CHANGE = 64
"""A reading is worth while when RSS has changed by this part of it."""

_OLD = 60.0
"""Seconds after which there is one all the same: other processes have left shared pages, or come to them."""


class Footprint:
    """The memory of this process: PSS, or RSS where the system refuses that.

    Between two readings what RSS grows by is added: new pages are the process's own.

    Args:
        rss: resident memory now, in bytes.
        pss: proportional memory now, in bytes; raises OSError where the system refuses it, or has none.
        clock: seconds.
    """

    def __init__(
        self,
        rss: Callable[[], int] | None = None,
        pss: Callable[[], int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        process = psutil.Process()
        self._rss = rss or (lambda: int(process.memory_info().rss))
        self._pss = pss or _read
        self._clock = clock
        self._read: tuple[int, int] | None = None  # PSS, and the RSS that belongs to it
        self._began = self._next = float("-inf")
        self._refused = False

    def measure(self) -> tuple[int, bool]:
        """Bytes, and whether they are PSS."""
        rss = self._rss()
        if self._due(rss):
            self._began = self._clock()
            try:
                self._read = self._pss(), rss
            except OSError:
                self._refused = True
            ended = self._clock()
            self._next = ended + _COST * (ended - self._began)
        if self._refused or self._read is None:
            return rss, False
        pss, before = self._read
        return max(0, pss + rss - before), True

    def _due(self, rss: int) -> bool:
        if self._refused or self._read is None:
            return not self._refused
        now, (_, before) = self._clock(), self._read
        return now >= self._next and (abs(rss - before) * _CHANGE >= before or now - self._began >= _OLD)


def _read() -> int:
    """Raises OSError; also where the system's answer has no PSS."""
    for line in _ROLLUP.read_bytes().splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) << 10
    raise OSError
