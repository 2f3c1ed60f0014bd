"""A fake agent for a notebook's end of the link: it says what the test wants."""

from __future__ import annotations

from collections import deque

import zmq

from nbcomm.protocol import Order, Report
from nbcomm.protocol.codec import decode_order, encode
from nbcomm.protocol.nodes import Left, Poll
from nbcomm.protocol.parcels import ITSELF, NO_HEADER, Letter, pack, unpack
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


class FakeAgent:
    """Speaks to the link as a node's agent does."""

    def __init__(self, home: WorldDir, info: LinkInfo | None = None, **keys: bytes) -> None:
        info = info or home.read_link()
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.ROUTING_ID, keys.get("name", info.name.encode()))
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.SNDTIMEO, PATIENCE)
        if keys.get("server", b"own"):
            self.socket.setsockopt(zmq.CURVE_SERVERKEY, keys.get("server", info.server_public.encode()))
            self.socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.get("public", info.client_public.encode()))
            self.socket.setsockopt(zmq.CURVE_SECRETKEY, keys.get("secret", info.client_secret.encode()))
        self.fate = self.socket.get_monitor_socket(_REFUSED)
        self.socket.connect(info.address)
        self.parcels: list[list[Letter]] = []
        self._come: deque[Letter] = deque()
        self._ranks: dict[int, deque[Letter]] = {}

    def send(self, *letters: Letter) -> None:
        self.socket.send_multipart(pack(letters))

    def report(self, report: Report) -> None:
        self.send(Letter(ITSELF, NO_HEADER, [encode(report)]))

    def next(self, rank: int) -> Letter:
        """The next letter to a rank, or to the agent itself."""
        mine = self._ranks.setdefault(rank, deque())
        while not mine:
            assert self.socket.poll(PATIENCE), "the link sent nothing"
            self.parcels.append(unpack(self.socket.recv_multipart()))
            for letter in self.parcels[-1]:
                self._ranks.setdefault(letter.rank, deque()).append(letter)
        return mine.popleft()

    def order(self) -> Order | Left | Poll:
        """The next order."""
        return decode_order(self.next(ITSELF).frames[0])

    def silent(self) -> bool:
        """Whether nothing has come."""
        return not self.socket.poll(0) and not any(self._ranks.values())

    def await_refusal(self) -> None:
        """Wait until the link has ended this connection."""
        assert self.fate.poll(PATIENCE), "the link neither took nor refused it"

    def close(self) -> None:
        self.socket.disable_monitor()
        self.fate.close()
        self.socket.close()
        self.context.term()
