"""How many ranks this machine holds: more are refused before a process starts, and a crowd is told of.

Only ranks on the notebook's machine are counted; of other machines nothing is known before they have joined.
"""

from __future__ import annotations

import os
import resource
from typing import NamedTuple

import psutil

from ..errors import StartError
from ..node.processes.resources import free_memory, free_tasks, usable_cores
from ..rank_spec import listed

PER_RANK = 96 << 20
"""A generous estimate of the bytes of memory that a rank takes without tensors: it takes about 40 MiB."""

_TASKS = 10
"""The processes and threads that each rank adds: its own nine, and one of the daemon's."""

_FILES, _FILES_PER_RANK = 60, 2
"""What a rank has open at least, and its connections to each other rank."""

_CROWD, _MOST = 8, 64
"""Ranks for each core above which it is said that they take turns, and above which they are refused."""

OVERSUBSCRIBE = "--oversubscribe (in Python oversubscribe=True)"


class Machine(NamedTuple):
    """What this machine has left for new processes.

    Attributes:
        cores: that they may run on.
        memory: bytes of memory.
        tasks: how many more processes and threads there may be; None if any number.
        files: how many files a process may have open; None if any number.
    """

    cores: int
    memory: int
    tasks: int | None = None
    files: int | None = None

    @classmethod
    def here(cls, n: int) -> Machine:
        """Look at this machine, as far as it may matter to so many ranks."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        tasks = _free_tasks(n * _TASKS)
        return cls(usable_cores(), free_memory(), tasks, None if files == resource.RLIM_INFINITY else files)


def check(n: int, machine: Machine) -> None:
    """Refuse more ranks than this machine holds.

    Raises:
        StartError: there are too many, for one reason or more.
    """
    holds = {f"its {machine.memory / 2**30:.1f} GiB of free memory": machine.memory // PER_RANK}
    holds[f"its {_cores(machine.cores)}, with {_MOST} ranks each,"] = machine.cores * _MOST
    if machine.tasks is not None:
        holds[f"the {machine.tasks} processes and threads that may still begin (ulimit -u)"] = machine.tasks // _TASKS
    if machine.files is not None:
        files = (machine.files - _FILES) // _FILES_PER_RANK
        holds[f"the {machine.files} files that a process may open (ulimit -n)"] = files
    few = {what: max(1, least) for what, least in holds.items() if n > max(1, least)}
    if few:
        said = listed([f"{what} are enough for {least}" for what, least in few.items()])
        raise StartError(
            f"{n} ranks do not fit into this machine: {said}. Nothing was started. Write -n {min(few.values())} or "
            f"less, or add {OVERSUBSCRIBE} to start them all the same."
        )


def crowd(n: int, cores: int) -> str:
    """Return a sentence if many ranks share each core, which tests and lessons do on purpose; "" if not.

    >>> crowd(64, 2), crowd(16, 2)
    ('64 ranks share 2 cores, so they take turns and cells take longer.', '')
    """
    return f"{n} ranks share {_cores(cores)}, so they take turns and cells take longer." if n > _CROWD * cores else ""


def _cores(count: int) -> str:
    return f"{count} core{'s' * (count > 1)}"


def _free_tasks(wanted: int) -> int | None:
    """Return how many more processes and threads this user, and this container, may have; None if that is no matter."""
    left = [] if (of_group := free_tasks()) is None else [of_group]
    most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    me = os.getuid()
    # Root has no such limit. Else all processes are counted, which takes a while, only where it may be reached.
    if most != resource.RLIM_INFINITY and me != 0 and most < wanted * 4:
        left.append(most - sum(_threads(process) for process in psutil.process_iter() if _uid(process) == me))
    return max(0, min(left)) if left else None


def _uid(process: psutil.Process) -> int | None:
    try:
        return int(process.uids().real)
    except psutil.Error:
        return None


def _threads(process: psutil.Process) -> int:
    try:
        return int(process.num_threads())
    except psutil.Error:
        return 0
