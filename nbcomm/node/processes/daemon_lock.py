"""The lock of a world's directory that one process has at a time: its daemon.

It is a record lock on a file. Only the process that took it has it, its forks do not, and it ends with that process,
whatever ends it. The system itself says who has it, so that is surely the process that is meant, which a pid in a file
or a name in a list of processes would not be.
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path

_LINUX, _BSD = "hhqqi", "qqihh"  # struct flock of fcntl.h: type, whence, start, len, pid; start, len, pid, type, whence

_TIMEOUT = 10.0
"""Seconds in which a killed process must end: one that waits for a disk in the kernel ends late."""

_TICK = 0.002


class DaemonLock:
    """The right to be the only daemon of a directory.

    Args:
        path: the file; no process may open it but by this class, because a process that closes it loses the lock.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def acquire(self) -> None:
        """Take the lock; wait while another process has it."""
        fcntl.lockf(self._open(), fcntl.LOCK_EX)

    def take_over(self) -> None:
        """End the process that has the lock, and take it.

        Raises:
            TimeoutError: that process does not end.
        """
        deadline = time.monotonic() + _TIMEOUT
        while True:
            try:
                fcntl.lockf(self._open(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):  # the system may say either
                self.kill_holder(deadline)
                if time.monotonic() > deadline:  # it is in another namespace of pids, say
                    raise TimeoutError(f"{self._path} is locked by a process that is not known here.") from None
                time.sleep(_TICK)
            else:
                return

    def kill_holder(self, deadline: float | None = None) -> None:
        """End the process that has the lock, if there is one, and wait until it has ended.

        Raises:
            TimeoutError: it does not end.
        """
        deadline = time.monotonic() + _TIMEOUT if deadline is None else deadline
        pid = self.holder()
        if not pid:
            return
        if pid < 0:  # Linux: its process is on another machine, or has a lock of another kind
            raise TimeoutError(f"{self._path} is locked by a process that cannot be ended from here.")
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        while self.holder() == pid:
            if time.monotonic() > deadline:
                raise TimeoutError(f"Process {pid}, which has served this world, does not end.")
            time.sleep(_TICK)

    def holder(self) -> int:
        """Return the process that has the lock; 0 if it is free, or this process has it."""
        if sys.platform == "linux":
            asked = fcntl.fcntl(self._open(), fcntl.F_GETLK, struct.pack(_LINUX, fcntl.F_WRLCK, 0, 0, 0, 0))
            kind, *_, pid = struct.unpack(_LINUX, asked)
        else:
            asked = fcntl.fcntl(self._open(), fcntl.F_GETLK, struct.pack(_BSD, 0, 0, 0, fcntl.F_WRLCK, 0))
            *_, pid, kind, _ = struct.unpack(_BSD, asked)
        return 0 if kind == fcntl.F_UNLCK else int(pid)

    def _open(self) -> int:
        if self._descriptor < 0:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        return self._descriptor

    def close(self) -> None:
        """Release the lock; in a fork of the process that has it, only close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
