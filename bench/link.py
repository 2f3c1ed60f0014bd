"""The round trip of the link alone: the notebook's end, and fake ranks with keys of their own in one other thread."""

from __future__ import annotations

import queue
import threading
from contextlib import ExitStack

import zmq
from msgspec import structs

from nbcomm.launch.link import Link
from nbcomm.node.notebook_end import NotebookEnd
from nbcomm.protocol import Done, Greet, Hello, StatusRequest
from nbcomm.protocol.codec import decode_piece, decode_to_rank, encode, to_frames
from nbcomm.protocol.nodes import rank_name
from nbcomm.protocol.streams import Outgoing, RankStream
from nbcomm.world_dir import WorldDir
from nbcomm.world_info import LinkInfo

from .rows import Row, interleaved


def measure(rounds: int, *, full: bool) -> list[Row]:  # noqa: ARG001 - as the others
    """One message to each rank and one back, at several sizes."""
    return [_round_trip(n, rounds) for n in (1, 4, 8, 32)]


def _round_trip(n: int, rounds: int) -> Row:
    received: queue.SimpleQueue[int] = queue.SimpleQueue()
    home = WorldDir.create()
    with ExitStack() as stack:
        stack.callback(home.remove)
        link = Link(home, lambda _: None)
        stack.callback(link.close)
        link.deliver_to(lambda rank, *_: received.put(rank))
        poller = zmq.Poller()
        ranks = [_Rank(rank, link, home.read_link(), poller) for rank in range(n)]
        stopped = threading.Event()
        answering = threading.Thread(target=_answer, args=(ranks, poller, stopped), daemon=True)
        answering.start()
        stack.callback(answering.join)
        stack.callback(stopped.set)

        def trip() -> None:
            link.send(range(n), StatusRequest())
            _await(received, n)

        _await(received, n)  # their hellos
        (median,) = interleaved(rounds, trip)
    return Row(f"round trip of the link, {n} ranks", f"{median * 1e3:.2f} ms")


def _await(received: queue.SimpleQueue[int], n: int) -> None:
    for _ in range(n):
        received.get()


class _Rank:
    """Answers each question at once."""

    def __init__(self, number: int, link: Link, info: LinkInfo, poller: zmq.Poller) -> None:
        public, secret = (half.decode() for half in zmq.curve_keypair())
        link.admit(number, 1, public)
        own = structs.replace(info, client_public=public, client_secret=secret, name=rank_name(number, 1))
        self.end = NotebookEnd(zmq.Context(), own, poller)
        self._number = number
        self._stream = RankStream(number + 1, Outgoing())

    def turn(self) -> None:
        for there in self.end.looks_up():
            if there:
                hello = Hello(self._number, self._number + 1, "", 0, "")
                self.end.send([encode(self._stream.header()), encode(hello)])
        for header, *frames in self.end.receive():
            piece = decode_piece(header.buffer)
            message = decode_to_rank(frames[0].buffer) if frames else None
            self._stream.is_new(piece)
            if isinstance(message, Greet):
                self._stream.greet(piece)
            elif self._stream.accepts(piece) and message is not None:
                self._stream.out.add(to_frames(Done(1)))
        for sent in self._stream.out.take():
            self.end.send([encode(self._stream.header(sent)), *sent.frames])


def _answer(ranks: list[_Rank], poller: zmq.Poller, stopped: threading.Event) -> None:
    by_socket = {socket: rank for rank in ranks for socket in (rank.end.link, rank.end.monitor)}
    while not stopped.is_set():
        for socket, _ in poller.poll(50):
            by_socket[socket].turn()
    for rank in ranks:
        rank.end.close()
