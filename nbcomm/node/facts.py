"""What is true of a node: its cores, its free memory, its address, its versions."""

from __future__ import annotations

import os
import platform
import socket
import time
from urllib.parse import urlsplit

from .. import __version__
from ..protocol import NodeFacts
from ..protocol.common import LOOPBACK
from ..protocol.nodes import wired
from ..world_dir import WorldDir
from ..world_info import LinkInfo
from .peers import on_the_route_to
from .processes.resources import free_memory, usable_cores


def address_towards(link: LinkInfo) -> str:
    """Return the address of this machine from which the notebook's end of a link is reached.

    Through a tunnel it is the one at which ssh has reached this machine.

    Args:
        link: its address is "tcp://10.0.0.1:4711"; "ipc://…" is on this machine.
    """
    if link.tunnelled:
        return (os.environ.get("SSH_CONNECTION", "").split() or [LOOPBACK] * 3)[2]
    host = urlsplit(link.address).hostname
    if not link.address.startswith("tcp://") or host is None:
        return LOOPBACK
    return on_the_route_to(host)


def of_node(order: int, home: WorldDir, link: LinkInfo) -> NodeFacts:
    """Return what is true of this node now.

    Args:
        order: the number of the order that asks for it.
        home: the node's directory.
        link: leads to the notebook.
    """
    return NodeFacts(
        order,
        usable_cores(),
        free_memory(),
        host=wired(socket.gethostname()),
        home=wired(str(home.path)),
        address=address_towards(link),
        versions={"Python": platform.python_version(), "nbcomm": __version__},
        clock=time.time(),
    )
