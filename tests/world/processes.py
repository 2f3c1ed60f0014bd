"""Which processes serve the ranks of a world, found from outside: the product names none of them."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

import psutil

from nbcomm.node.peers import listener_at
from nbcomm.world_dir import WorldDir

from .. import autopsy

if TYPE_CHECKING:
    from .notebook import Notebook

OLD_GLOO = version("torch").startswith(("2.8.", "2.9.", "2.10."))
"""Whether gloo prints a line for each new group, and gives its threads no name."""

FIND = """\
import os, psutil, time
from nbcomm.node.peers import listener_at
from nbcomm.notebook.session import registry
from nbcomm.world_dir import WorldDir
def home_of(node):
    return getattr(node, 'home', None) or WorldDir(node.told.home)
def helpers(node=None):
    node = node or registry.current()._processes.nodes.head
    deadline = time.monotonic() + 30
    while True:  # one that has ended may not be replaced yet
        try:
            daemon = psutil.Process(listener_at(home_of(node).daemon_socket))
            alive = [child.pid for child in daemon.children() if child.status() != psutil.STATUS_ZOMBIE]
            zygotes = [pid for pid in alive if os.getpgid(pid) == os.getpgid(daemon.pid)]
            if zygotes or not node.ready.forks:
                break
        except (psutil.NoSuchProcess, ProcessLookupError):
            pass
        assert time.monotonic() < deadline, 'no daemon with a zygote serves'
        time.sleep(0.01)
    controller = node.processes.get('controller')
    zygote, controller = zygotes[0] if zygotes else 0, controller.pid if controller else 0
    return {'daemon': daemon.pid, 'zygote': zygote, 'controller': controller}
"""
"""Defines a function in a notebook: the pids of the daemon, its zygote and ipyparallel's controller; 0 for none."""


def await_daemon(notebook: Notebook, home: WorldDir, earlier: int = 0) -> int:
    """Return the pid of the daemon that serves, once one does that is not an earlier one.

    Between two daemons there is none, whose pid would be 0: a signal to that hits this process's whole group.
    """
    found: list[int] = []

    def serves() -> bool:
        found.append(listener_at(home.daemon_socket))
        return found[-1] not in {0, earlier}

    notebook.until(serves, 60, "no other daemon serves" if earlier else "no daemon serves")
    return found[-1]


def pid_of(notebook: Notebook, which: str) -> int:
    """Return the pid of "daemon", "zygote" or "controller"."""
    return int(notebook.run(f"{FIND}print(helpers()[{which!r}])").text)


def of_notebook(pid: int) -> list[psutil.Process]:
    """The processes of the worlds that a notebook's process holds, and its children; the seed is neither."""
    held = {process for process, home in autopsy.of_worlds().items() if WorldDir(home).holder() == pid}
    return sorted(held | {*psutil.Process(pid).children(recursive=True)}, key=lambda process: process.pid)
