"""Whether a process of a world lives, seen by a process that is not its parent; and its end."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

import psutil

from ...world_dir import HOME_VARIABLE, WorldDir

_TIMEOUT = 1.0
"""Seconds for which a process may have no environment: it has one a moment after its `exec`."""


def lives(home: WorldDir, pid: int) -> bool:
    """Return whether a process lives and belongs to this world: its pid may have been given to another since.

    Raises:
        OSError: the system does not tell, for example because too many files are open.
    """
    deadline = time.monotonic() + _TIMEOUT
    try:
        process = psutil.Process(pid)
        while process.status() != psutil.STATUS_ZOMBIE:
            environment = process.environ()
            if environment or time.monotonic() > deadline:
                return bool(environment.get(HOME_VARIABLE) == os.fspath(home.path))
            time.sleep(0.001)
    except psutil.NoSuchProcess:
        pass
    except psutil.AccessDenied as error:
        if _is_ours(pid):
            raise PermissionError(f"The system does not tell of process {pid}.") from error
    return False


def _is_ours(pid: int) -> bool:
    """Return whether a process is this user's: one of another has a pid that was used again."""
    try:
        return bool(psutil.Process(pid).uids().real == os.getuid())
    except psutil.Error:
        return False


def has_ended(home: WorldDir, pid: int) -> bool:
    """Return whether a process of this world has surely ended; what the system does not tell now, it may tell later."""
    try:
        return not lives(home, pid)
    except OSError:
        return False


def kill_with_children(pid: int) -> None:
    """Kill a process that lives, with its child processes."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)  # each process of a world leads a process group
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)  # it may have been forked just now, and lead no group yet


def kill_orphans(home: WorldDir, pid: int) -> None:
    """Kill the child processes that a process of this world has left behind in its group.

    The system gives its pid to no other process while one of them lives. So if another one has it, none is left.
    """
    with suppress(OSError, psutil.Error):
        if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            return
        if any(_is_in_group(other, pid) and lives(home, other) for other in psutil.pids()):
            os.killpg(pid, signal.SIGKILL)


def _is_in_group(pid: int, leader: int) -> bool:
    """Return whether a process is in the group with which a process of a world began its session."""
    try:
        return os.getpgid(pid) == os.getsid(pid) == leader
    except OSError:
        return False


def end(home: WorldDir, pid: int) -> None:
    """Kill a process of this world with its child processes, or those that it has left behind."""
    with suppress(OSError):  # it is not known whose it is: a rank without a node ends itself after the lease
        if lives(home, pid):
            kill_with_children(pid)
        else:
            kill_orphans(home, pid)
