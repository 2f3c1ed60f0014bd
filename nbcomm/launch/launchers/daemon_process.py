"""The daemon of a world, as the process that a notebook has started and can watch."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from ...node.processes.exit_status import how_it_ended
from ...node.seed.client import SeededProcess
from ...node.start import last_words, start_daemon
from ...world_dir import HOME_VARIABLE, WorldDir
from ..working_folder import to_start_in
from .program import run_to_end

_MOMENT = 1.0
"""Seconds in which a process whose end is known must have a status."""


class DaemonProcess:
    """The daemon that this notebook has started, if it has started one, and its log.

    Args:
        home: the world's directory.
        running: another notebook has started it.

    Raises:
        FileNotFoundError: that world has ended.
    """

    is_remote = False
    is_cut_off = False
    is_far = False
    starter = without_heal = ""

    def __init__(self, home: WorldDir, *, running: bool) -> None:
        self._home = home
        self._process: SeededProcess | None = None
        # Kept open: a daemon that fails removes the directory, and the end of its log must still be read.
        self._log: IO[bytes] = (home.daemon_log if running else Path(os.devnull)).open("rb")

    def start(self) -> None:
        """Start one; it starts a daemon, and takes over what an earlier one has started."""
        home = self._home
        self._log.close()
        log = os.open(home.daemon_log, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._log = os.fdopen(log, "w+b")
        stream, folder = self._log, to_start_in(home)
        self._process = SeededProcess(home, stream, folder, lambda: start_daemon(home, stream, folder))

    @property
    def is_ours(self) -> bool:
        """Whether this notebook has started it, so that its end is seen here."""
        return self._process is not None

    @property
    def has_ended(self) -> bool:
        """Whether one that this notebook has started has ended."""
        return self._process is not None and self._process.has_ended

    @property
    def has_cleared(self) -> bool:
        """Whether neither its process nor the world's directory is left."""
        return not self._home.path.exists() and (self.has_ended or not self.is_ours)

    @property
    def cold(self) -> str:
        """Why torch is imported for its start, in words; nothing if that was done before."""
        return "" if self._process is None else self._process.cold

    @property
    def how(self) -> str:
        """How it has ended, in words."""
        status = None if self._process is None else self._process.status(_MOMENT)  # its daemon may have noticed first
        return "has ended" if status is None else how_it_ended(status)

    def kill(self) -> None:
        """End it, if this notebook has started it."""
        if self._process is not None:
            self._process.kill()

    def fence(self, timeout: float, pids: Sequence[int] = ()) -> None:
        """End what it and its daemon have left, with these processes, and wait for that for so many seconds.

        Raises:
            StartError: it has failed, or was not done in time.
        """
        run_to_end([sys.executable, "-m", "nbcomm.node.fence", str(self._home.path), *map(str, pids)], timeout)

    def environment(self, added: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a process of the node: this one's, and these variables."""
        return {**os.environ, **added, HOME_VARIABLE: str(self._home.path)}

    def working_folder(self) -> str:
        """Return where processes start: where the notebook works, if that still exists."""
        return to_start_in(self._home)

    def last_words(self, lines: int = 20) -> str:
        """Return the end of its log."""
        return last_words(self._log, lines)

    def close(self) -> None:
        """Close its log."""
        self._log.close()
