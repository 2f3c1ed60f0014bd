"""What is true of a node: its cores, its free memory, its address, its versions."""

from __future__ import annotations

import os
import platform
import socket
from urllib.parse import urlsplit

import psutil

from ... import __version__
from ...protocol import NodeFacts
from ...protocol.common import LOOPBACK
from ...protocol.nodes import wired
from ...world_dir import WorldDir
from .peers import on_the_route_to


def usable_cores() -> int:
    """Count the cores that this process may run on, and so those that it starts."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_memory() -> int:
    """Return the bytes of memory that new processes can use without swapping."""
    return int(psutil.virtual_memory().available)


def address_towards(link: str) -> str:
    """Return the address of this machine from which the notebook's end of a link is reached.

    Args:
        link: the link's address: "tcp://10.0.0.1:4711"; "ipc://…" is on this machine.
    """
    host = urlsplit(link).hostname
    if not link.startswith("tcp://") or host is None:
        return LOOPBACK
    return on_the_route_to(host)


def of_node(order: int, home: WorldDir, link: str) -> NodeFacts:
    """Return what is true of this node now.

    Args:
        order: the number of the order that asks for it.
        home: the node's directory.
        link: the address of the notebook's end of the link.
    """
    return NodeFacts(
        order,
        usable_cores(),
        free_memory(),
        host=wired(socket.gethostname()),
        home=wired(str(home.path)),
        address=address_towards(link),
        versions={"Python": platform.python_version(), "nbcomm": __version__},
    )
