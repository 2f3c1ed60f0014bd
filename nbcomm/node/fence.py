"""The end of what a node has left behind: ``python -m nbcomm.node.fence HOME [PID…]``, or the name of the directory.

If the daemon was killed, or does not react, nobody obeys an order to end the world. This program ends it by itself. It
runs on the node, because only there can be seen whether a pid still is that of a process of the world.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from contextlib import suppress

from ..world_dir import WorldDir
from .processes import fork_signals
from .processes.children import written_down
from .processes.daemon_lock import DaemonLock
from .processes.liveness import end, has_ended

_TIMEOUT = 1.0
"""Seconds in which killed processes must end."""

_TICK = 0.002


def fence(home: WorldDir, others: Iterable[int] = ()) -> None:
    """End the daemon and all processes of a world on this node, and remove its directory.

    Args:
        home: the directory.
        others: processes of which the notebook knows; perhaps there was no room to write them down.
    """
    with suppress(OSError):  # it does not end, or the directory is removed just now
        DaemonLock(home.daemon_lock).kill_holder()
    left = [*{*others, *(started.pid for started in written_down(home))}]
    for pid in left:
        end(home, pid)
    deadline = time.monotonic() + _TIMEOUT
    while not all(has_ended(home, pid) for pid in left) and time.monotonic() < deadline:
        time.sleep(_TICK)
    home.remove()


if __name__ == "__main__":
    fork_signals.ignore()
    fence(WorldDir.named(sys.argv[1]), map(int, sys.argv[2:]))
