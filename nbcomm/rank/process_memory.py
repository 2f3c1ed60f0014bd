"""How much of the machine's memory a process uses.

Forked ranks share the pages of torch and of all that was imported before the fork. Resident memory (RSS) counts such a
page in full on every rank; proportional memory (PSS) counts each rank's part of it, so that the ranks' figures add up.
But the system walks every page for PSS, which takes milliseconds where RSS takes microseconds.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

_ROLLUP = Path("/proc/self/smaps_rollup")

_COST = 500
"""The pause after a reading of PSS, in multiples of its duration: it may take 0.2 % of a core."""

_CHANGE = 64
"""A new reading is made when RSS has changed by this fraction of it."""

_OLD = 60.0
"""Seconds after which there is a new reading in any case: other processes may have left or joined shared pages."""


class Footprint:
    """The memory of this process: PSS, or RSS if the system refuses that.

    Between two readings the growth of RSS is added: new pages are the process's own.

    Args:
        rss: resident memory now, in bytes.
        pss: proportional memory now, in bytes; raises OSError if the system refuses it, or has none.
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
        self._last = 0, False

    def measure(self) -> tuple[int, bool]:
        """Return the memory in bytes, and whether it is PSS.

        To read it takes a descriptor. If a cell has used up all, it is what it was: a rank's state is told anyway.
        """
        with suppress(OSError, psutil.Error):
            self._last = self._measure()
        return self._last

    def _measure(self) -> tuple[int, bool]:
        rss = self._rss()
        if self._due(rss):
            self._began = self._clock()
            try:
                self._read = self._pss(), rss
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    raise
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
    """Read PSS in bytes; raise OSError also if the system's answer does not have it."""
    for line in _ROLLUP.read_bytes().splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) << 10
    raise OSError
