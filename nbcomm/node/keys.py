"""The check of CURVE keys: only known ones are let in, and each message of a connection gets the name of its key.

ZMQ asks an authenticator, on a thread of its own, about each connection to a socket of its context.
"""

from __future__ import annotations

from collections.abc import Mapping

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils import z85


class Keys(ThreadAuthenticator):
    """The authenticator of a context; it is started.

    Args:
        context: whose sockets it guards; all of them, so each guarded socket has a context of its own.
        names: by public key, in Z85 text.

    Attributes:
        names: as above; more may be added at any time.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], names: Mapping[str, str]) -> None:
        super().__init__(context)
        self.names = {key.encode(): name for key, name in names.items()}
        self.start()
        self.configure_curve_callback("*", self)

    def add(self, key: str, name: str) -> None:
        """Let one more key in."""
        self.names[key.encode()] = name

    def remove(self, key: str) -> None:
        """Let a key in no more; a connection that it has is kept."""
        self.names.pop(key.encode(), None)

    def callback(self, _domain: str, key: bytes) -> bool:
        """Return whether this key, in Z85 text, is known."""
        return key in self.names

    def curve_user_id(self, client_public_key: bytes) -> str:
        """Return the name that goes with this key, in bytes."""
        return self.names.get(z85.encode(client_public_key), "")  # it may have been removed just now
