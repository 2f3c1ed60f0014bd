"""ipyparallel's controller, on ports that no other process can get before it uses them.

ipyparallel asks the system for a free port, closes it, and binds about 20 of them later, the last in threads that start
a quarter of a second after. If another process got a port in between, the controller ends, or lacks one of its queues,
so that users of the queue wait forever. So a socket keeps each port here. This socket and ZeroMQ's have SO_REUSEADDR,
with which Linux lets both bind the port, because only one listens, and does not give it to a process that asks for any.

A process that asked before, and binds by number later, would still get it: so does Jupyter with the ports of a kernel
that it starts. So these are ports that the system gives to nobody, where there are some.
"""

from __future__ import annotations

import random
import socket
import sys
from itertools import chain
from pathlib import Path
from typing import Any

from ipyparallel import util
from ipyparallel.controller import app

from . import parenthood

_GIVEN = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""The first and the last port that the system gives to a process that asks for any."""

_LAST = 65535

_keepers: list[socket.socket] = []


def kept_ports(n: int) -> list[int]:
    """Choose n TCP ports, and reserve them for this process's sockets with SO_REUSEADDR."""
    above, ports = _above(), list[int]()
    # A generator of its own: forked processes share the state of the common one.
    first = random.Random().randrange(len(above)) if above else 0  # noqa: S311 - no secret
    candidates = chain(above[first:], above[:first])
    while len(ports) < n:
        port = next(candidates, 0)
        keeper = socket.socket()
        try:
            keeper.bind(("", port))  # on every address, as ipyparallel does, which also supports other machines
        except OSError:
            keeper.close()
            if not port:
                raise
            continue
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # not before: nobody else may have it
        _keepers.append(keeper)
        ports.append(keeper.getsockname()[1])
    return ports


def _above() -> range:
    try:
        return range(int(_GIVEN.read_text().split()[1]) + 1, _LAST + 1)
    except (OSError, ValueError, IndexError):  # a system that does not say
        return range(0)


def main(argv: list[str] | None = None) -> Any:
    """Run the controller; return when it was told to end, or the daemon that has started it ends."""
    parenthood.die_with_starter()  # so does its heart monitor, which is its fork: nothing else would end them
    if sys.platform == "linux":  # SO_REUSEADDR has another meaning elsewhere
        util.select_random_ports = kept_ports
    return app.main(argv)


if __name__ == "__main__":
    main()
