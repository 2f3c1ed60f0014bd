"""ipyparallel's controller, on ports that no other process can get before it uses them.

ipyparallel asks the system for a free port, closes it, and binds about 20 of them later, the last in threads that start
a quarter of a second after. If another process got a port in between, the controller ends, or lacks one of its queues,
so that users of the queue wait forever. So a socket keeps each port here. This socket and ZeroMQ's have SO_REUSEADDR,
with which Linux lets both bind the port, because only one listens, and does not give it to a process that asks for any.
"""

from __future__ import annotations

import socket
import sys
from typing import Any

from ipyparallel import util
from ipyparallel.controller import app

_keepers: list[socket.socket] = []


def kept_ports(n: int) -> list[int]:
    """Let the system choose n TCP ports, and reserve them for this process's sockets with SO_REUSEADDR."""
    sockets = [socket.socket() for _ in range(n)]
    _keepers.extend(sockets)
    for keeper in sockets:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("", 0))  # on every address, as ipyparallel does, which also supports other machines
    return [keeper.getsockname()[1] for keeper in sockets]


def main(argv: list[str] | None = None) -> Any:
    """Run the controller; return when it was told to end."""
    if sys.platform == "linux":  # SO_REUSEADDR has another meaning elsewhere
        util.select_random_ports = kept_ports
    return app.main(argv)


if __name__ == "__main__":
    main()
