"""Fake ranks: what speaks to the link as the test wants."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from typing import Any

import zmq
from msgspec import structs

from nbcomm.launch.link import Link
from nbcomm.protocol import FromRank, Greet, Hello, StatusReply, ToRank
from nbcomm.protocol.chunks import Piece, Receiving
from nbcomm.protocol.codec import decode_piece, decode_to_rank, encode, to_frames
from nbcomm.protocol.nodes import rank_name
from nbcomm.protocol.streams import Header, Outgoing, RankStream
from nbcomm.world_info import LinkInfo

from .fake_daemon import Peer

_starts = itertools.count(1)

PATIENCE = 30.0


class Admitted:
    """A key that the link takes for a process of a rank, and the name that goes with it."""

    def __init__(self, rank: int, link: Link, info: LinkInfo) -> None:
        self.start = next(_starts)
        public, secret = (half.decode() for half in zmq.curve_keypair())
        link.admit(rank, self.start, public)
        self.info = structs.replace(info, client_public=public, client_secret=secret, name=rank_name(rank, self.start))


class FakeRank:
    """What a rank says and hears, as `nbcomm.rank.link` does it.

    Args:
        rank: which.
        link: the notebook's, which admits it.
        info: where the link is.
        incarnation: of this process.
    """

    def __init__(self, rank: int, link: Link, info: LinkInfo, incarnation: int = 0) -> None:
        self.rank = rank
        self.pid = 1000 + rank
        self.stream = RankStream(incarnation or 1000 + self.pid, Outgoing())
        self._taken: deque[tuple[ToRank, list[bytes]]] = deque()
        admitted = Admitted(rank, link, info)
        self.start, self.info = admitted.start, admitted.info
        self._receiving = Receiving()
        self.wire = Peer(self.info)

    def reconnect(self) -> None:
        """Connect anew, as after the loss of a connection."""
        self.wire.close()
        self._receiving.clear()
        self.wire = Peer(self.info)

    def put(self, header: bytes, frames: Sequence[Any]) -> None:
        """Send."""
        self.wire.send(header, *frames)

    def get(self) -> tuple[Piece, list[bytes]]:
        """Wait for what comes next: a header and frames."""
        while True:
            first, *frames = self.wire.receive()
            piece = decode_piece(first)
            whole = self._receiving.take(piece, frames)
            taken = self._receiving.due()
            if taken is not None:
                said = self.stream.header()
                self.put(encode(Piece(said.session_id, said.incarnation, 0, 0, said.heard, at=taken)), [])
            if whole:
                return piece, [bytes(frame) for frame in whole]

    def hello(self, *, asks: bool = True) -> Hello:
        """Say hello."""
        message = Hello(self.rank, self.pid, "host", 0, "2.13.0", asks=asks)
        self.tell(message)
        return message

    def tell(self, message: Hello | StatusReply, header: Header | None = None) -> None:
        """Say something without a number."""
        self.put(encode(header or self.stream.header()), to_frames(message))

    def say(self, message: FromRank, *buffers: Any, run: int = 0) -> None:
        """Say something that must not be lost."""
        self.stream.out.add(to_frames(message, buffers), run)
        self.pass_on()

    def pass_on(self) -> None:
        """Send what is to be sent."""
        for sent in self.stream.out.take():
            self.put(encode(self.stream.header(sent)), sent.frames)

    def receive(self) -> tuple[Header, ToRank, list[bytes]]:
        """Return what comes next, whatever it is."""
        header, (body, *buffers) = self.get()
        return header, decode_to_rank(body), buffers

    def hear(self) -> tuple[ToRank, list[bytes]]:
        """Return the next message that counts, after those that keep the stream in order."""
        while not self._taken:
            self.take()
        return self._taken.popleft()

    def meet(self) -> None:
        """Say hello, and wait for the greeting."""
        self.hello()
        while not self.take():
            pass

    def take(self) -> bool:
        """Take what comes next; return whether it was a greeting to this process."""
        header, message, buffers = self.receive()
        self.stream.is_new(header)
        if isinstance(message, Greet):
            known = self.stream.greet(header)
            if message.asks or not known:
                self.hello(asks=not known)
            self.pass_on()
            return known
        if self.stream.accepts(header):
            self._taken.append((message, buffers))
        elif self.stream.lacking:
            self.hello(asks=False)
        return False
