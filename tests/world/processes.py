"""Which processes serve the ranks of a world, found from outside: the product names none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil

from nbcomm.node.agent.peers import listener_at
from nbcomm.world_dir import WorldDir

from .. import autopsy

if TYPE_CHECKING:
    from .notebook import Notebook

FIND = """\
import psutil, time
from nbcomm.node.agent.peers import listener_at
from nbcomm.notebook.session import registry
from nbcomm.world_dir import WorldDir
def home_of(node):
    return getattr(node, 'home', None) or WorldDir(node.told.home)
def helpers(node=None):
    node = node or registry.current()._processes.nodes.head
    deadline = time.monotonic() + 30
    while True:  # an agent that has ended may not be replaced yet, and one without a fork server is about to be
        try:
            agent = psutil.Process(listener_at(home_of(node).agent_socket))
            server = psutil.Process(agent.ppid())
            if 'nbcomm.node.forkserver' in server.cmdline():
                break
        except psutil.NoSuchProcess:
            pass
        assert time.monotonic() < deadline, 'no agent of a fork server serves'
        time.sleep(0.01)
    controller = node.processes.get('controller')
    return {'agent': agent.pid, 'fork server': server.pid, 'controller': controller.pid if controller else 0}
"""
"""Defines a function in a notebook: the pids of the agent, the fork server and ipyparallel's controller."""


def await_agent(notebook: Notebook, home: WorldDir, earlier: int = 0) -> int:
    """Return the pid of the agent that serves, once one does that is not an earlier one.

    Between two agents there is none, whose pid would be 0: a signal to that hits this process's whole group.
    """
    found: list[int] = []

    def serves() -> bool:
        found.append(listener_at(home.agent_socket))
        return found[-1] not in {0, earlier}

    notebook.until(serves, 60, "no other agent serves" if earlier else "no agent serves")
    return found[-1]


def pid_of(notebook: Notebook, which: str) -> int:
    """Return the pid of "agent", "fork server" or "controller"."""
    return int(notebook.run(f"{FIND}print(helpers()[{which!r}])").text)


def of_notebook(pid: int) -> list[psutil.Process]:
    """The processes of the worlds that a notebook's process holds, and its children; the seed is neither."""
    held = {process for process, home in autopsy.of_worlds().items() if WorldDir(home).holder() == pid}
    return sorted(held | {*psutil.Process(pid).children(recursive=True)}, key=lambda process: process.pid)
