"""The check of CURVE keys: only known ones are let in, and each message tells the key of its sender, which has a name.

ZMQ asks an authenticator, on a thread of its own, about each connection to a socket of its context. That thread runs
nothing but pyzmq's code: if something of ours raised there, it would end, and nobody would be let in any more.
"""

from __future__ import annotations

from collections.abc import Mapping

import zmq
from zmq.auth.thread import ThreadAuthenticator

_ALL = "*"
"""The domain of all sockets, as pyzmq calls it."""


class Keys(ThreadAuthenticator):
    """The authenticator of a context; it is started.

    Args:
        context: whose sockets it guards; all of them, so each guarded socket has a context of its own.
        names: by public key, in Z85 text; more may be added at any time.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], names: Mapping[str, str]) -> None:
        super().__init__(context)
        self.replace(names)
        self.start()

    @property
    def names(self) -> dict[bytes, str]:
        """The names of those that are let in, by key."""
        known: dict[bytes, str] = self.certs[_ALL]
        return known

    def replace(self, names: Mapping[str, str]) -> None:
        """Let in these keys, and hear no others."""
        self.certs[_ALL] = {key.encode(): name for key, name in names.items()}  # where pyzmq looks for them

    def add(self, key: str, name: str) -> None:
        """Let one more key in."""
        self.names[key.encode()] = name

    def remove(self, key: str) -> None:
        """Let a key in no more, and hear it no more."""
        self.names.pop(key.encode(), None)

    def name(self, frame: zmq.Frame) -> str:
        """Return the name that goes with the key of a message's sender; "" if it is not known any more."""
        key = str(frame.get("User-Id"))  # as pyzmq has it where nobody changes it
        return self.names.get(key.encode(), "")
