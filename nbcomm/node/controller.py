"""ipyparallel's controller, on ports that nobody else is given before it has them.

ipyparallel asks the system for a free port, closes it, and binds some 20 of them later, the last in threads that start
a quarter of a second after: a port that another process was given meanwhile ends the controller, or leaves it without
one of its queues, so that who speaks through it waits for ever. So a socket keeps each port here. That one and ZeroMQ's
have SO_REUSEADDR, with which Linux lets both have it, as only one listens, and gives it to nobody who asks for any.
"""

from __future__ import annotations

import socket
import sys
from typing import Any

from ipyparallel import util
from ipyparallel.controller import app

_keepers: list[socket.socket] = []


def kept_ports(n: int) -> list[int]:
    """Have the system choose n TCP ports, which are this process's from then on, for sockets with SO_REUSEADDR."""
    sockets = [socket.socket() for _ in range(n)]
    _keepers.extend(sockets)
    for keeper in sockets:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("", 0))  # on every address, as ipyparallel looks: it knows of others than this machine's
    return [keeper.getsockname()[1] for keeper in sockets]


def main(argv: list[str] | None = None) -> Any:
    """Run the controller; returns when it has been told to end."""
    if sys.platform == "linux":  # elsewhere SO_REUSEADDR means something else
        util.select_random_ports = kept_ports
    return app.main(argv)


if __name__ == "__main__":
    main()
