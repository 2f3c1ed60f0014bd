"""Whether a process of a world lives, seen by a process that is not its parent."""

from __future__ import annotations

import os

import psutil

from ..world_dir import HOME_VARIABLE, WorldDir


def lives(home: WorldDir, pid: int) -> bool:
    """Return whether a process lives and belongs to this world: its pid may have been given to another since."""
    try:
        process = psutil.Process(pid)
        ours = process.environ().get(HOME_VARIABLE) == os.fspath(home.path)
        return bool(ours and process.status() != psutil.STATUS_ZOMBIE)
    except (psutil.Error, OSError):
        return False
