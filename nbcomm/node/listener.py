"""Where a node's daemon takes what the ranks of other nodes say: a TCP address, at which CURVE lets in only these.

A rank is its key, and its start: of a process that was replaced, nothing counts any more, although its connection may
still be there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import zmq

from ..world_info import LinkInfo
from .dealers import beat
from .keys import Keys

_MOST = 100
"""Messages that are read in one turn: other things must not wait behind them."""


class NodeListener:
    """The socket; the daemon's loop polls it.

    Args:
        address: of this machine, at which other nodes reach it: "tcp://10.0.0.1:*". If the port is a certain one, and
            in use, the system chooses another.
        info: has the node's keys, which are this end's.

    Attributes:
        socket: what to poll.
        address: where it listens.

    Raises:
        zmq.ZMQError: this machine has no such address.
    """

    def __init__(self, address: str, info: LinkInfo) -> None:
        self._context = zmq.Context()
        self._guard = Keys(self._context, {})
        try:
            self.socket = made = self._context.socket(zmq.ROUTER)
            made.setsockopt(zmq.CURVE_SERVER, 1)
            made.setsockopt_string(zmq.CURVE_SECRETKEY, info.client_secret)
            made.setsockopt(zmq.SNDHWM, 0)
            made.setsockopt(zmq.RCVHWM, 0)
            made.setsockopt(zmq.LINGER, 0)
            beat(made)
            try:
                made.bind(address)
            except zmq.ZMQError:
                made.bind(f"{_without_port(address)}:*")
        except BaseException:
            self.close()
            raise
        self.address = made.get_string(zmq.LAST_ENDPOINT)

    def is_at(self, address: str) -> bool:
        """Tell whether this is the machine's address that is wanted, at whichever port."""
        return _without_port(address) == _without_port(self.address)

    def let_in(self, names: Mapping[str, str]) -> None:
        """Let in the processes with these names, by their public keys in Z85 text, and hear no others."""
        self._guard.replace(names)

    def receive(self) -> Iterator[tuple[str, bytes, list[zmq.Frame]]]:
        """Read what has come: the name of a process, its connection, and the frames of its message."""
        for _ in range(_MOST):
            if not int(self.socket.get(zmq.EVENTS)) & zmq.POLLIN:
                return
            connection, *frames = self.socket.recv_multipart(copy=False)
            name = self._guard.name(frames[0]) if frames else ""
            if name:
                yield name, connection.bytes, frames

    def send(self, connection: bytes, *frames: Any) -> None:
        """Answer a process; the answer is dropped if that has gone."""
        self.socket.send_multipart([connection, *frames])

    def close(self) -> None:
        """Let nobody in any more."""
        self._guard.stop()
        self._context.destroy(linger=0)


def _without_port(address: str) -> str:
    return address.rpartition(":")[0]
