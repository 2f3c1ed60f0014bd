"""A fake daemon for a notebook's end of the link: it says what the test wants. So does any other end with a key."""

from __future__ import annotations

from typing import Any

import zmq

from nbcomm.protocol import Order, Report
from nbcomm.protocol.codec import decode_order, encode
from nbcomm.world_dir import WorldDir
from nbcomm.world_info import LinkInfo

PATIENCE = 10_000
"""Milliseconds that a test waits for a message that must come."""

_REFUSED = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)


class Peer:
    """A connection to the link with the keys of a link file, or others."""

    def __init__(self, info: LinkInfo, **keys: bytes) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        if "name" in keys:
            self.socket.setsockopt(zmq.ROUTING_ID, keys["name"])
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.SNDTIMEO, PATIENCE)
        if keys.get("server", b"own"):
            self.socket.setsockopt(zmq.CURVE_SERVERKEY, keys.get("server", info.server_public.encode()))
            self.socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.get("public", info.client_public.encode()))
            self.socket.setsockopt(zmq.CURVE_SECRETKEY, keys.get("secret", info.client_secret.encode()))
        self.fate = self.socket.get_monitor_socket(_REFUSED)
        self.socket.connect(info.address)

    def send(self, *frames: Any) -> None:
        self.socket.send_multipart(frames)

    def receive(self) -> list[bytes]:
        """What comes next."""
        assert self.socket.poll(PATIENCE), "the link sent nothing"
        return self.socket.recv_multipart()

    def silent(self) -> bool:
        """Whether nothing has come."""
        return not self.socket.poll(0)

    def await_refusal(self) -> None:
        """Wait until the link has ended this connection."""
        assert self.fate.poll(PATIENCE), "the link neither took nor refused it"

    def close(self) -> None:
        if not self.socket.closed:
            self.socket.disable_monitor()
            self.fate.close()
            self.socket.close()
            self.context.term()


class FakeDaemon(Peer):
    """Speaks to the link as a node's daemon does."""

    def __init__(self, home: WorldDir, info: LinkInfo | None = None, **keys: bytes) -> None:
        super().__init__(info or home.read_link(), **keys)

    def report(self, report: Report) -> None:
        self.send(encode(report))

    def order(self) -> Order:
        """The next order."""
        (frame,) = self.receive()
        return decode_order(frame)
