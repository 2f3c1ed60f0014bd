"""The notebook's end of the link: one socket and one thread, for each node's agent and, through it, every rank.

A ROUTER takes the connections of the agents: on the notebook's machine in the world's private directory, from other
machines at a TCP address. CURVE lets both ends prove that they hold the world's keys, and encrypts the traffic. A
node's name is bound to its key, and a node speaks only for the ranks that it has. A daemon thread owns the socket. A
thread that wants to send gives it the message and wakes it. What arrives goes to callbacks on that thread, which must
be quick.

Each rank has a stream (`protocol.streams`), so that what is sent to it is done once, whatever breaks in between.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec
import zmq

from ..faults import Faults
from ..node.agent.keys import Keys
from ..protocol import FromRank, Greet, Hello, Order, Poll, Report, StatusRequest, ToRank
from ..protocol.codec import decode_from_rank, decode_header, decode_report, encode, from_frames
from ..protocol.parcels import HEAD, ITSELF, NO_HEADER, Letter, name_of, pack, unpack
from ..protocol.requests import MainLoopRequest
from ..protocol.streams import NotebookStream
from ..threads import keep
from ..world_dir import WorldDir
from ..world_info import LinkInfo

Receiver = Callable[[int, FromRank, Sequence[Any]], None]
"""Called with the rank, its message, and the raw frames after it."""

_BREATH = 0.1
"""Seconds of pause after a fault of the link's own: one that repeats at once must not use up a core."""

_MOST = 100
"""Parcels that are read before waiting messages are sent: an interrupt must not queue behind output."""

_BIND = 5.0
"""Seconds in which the link's thread must have bound an address."""


class Link:
    """The notebook's socket, bound to the world's address. It has one node, the head; `add` adds others.

    Args:
        home: the world's directory; the link file is written there for the agent. An existing one was written by an
            earlier notebook: its address and its keys are used again, and the agent connects by itself.
        report: called on the link's thread with what the head's agent reports.
        admit: called there with a rank and its pid: returns whether that is the rank's present process.

    Attributes:
        settled: the last request that was received completely; ranks need not keep their messages about it.
    """

    def __init__(
        self, home: WorldDir, report: Callable[[Report], None], admit: Callable[[int, int], bool] = lambda *_: True
    ) -> None:
        self.settled = 0
        self._nodes = {HEAD: _Node(report, admit)}
        self._named = {name_of(HEAD): HEAD}
        self._node_of: dict[int, int] = {}  # of each rank that is not on the head
        self._receive: Receiver | None = None
        self._faults = Faults()
        self._epoch = home.next_epoch()
        self._lock = threading.Lock()
        self._streams: dict[int, NotebookStream] = {}
        self._due: set[int] = set()  # ranks with messages that are not passed on
        self._decoded: dict[int, FromRank] = {}  # of the parcel that is read, whose frames live as long
        self._words: deque[_Order | tuple[int, ToRank | None]] = deque()  # orders, and messages without a number
        self._to_bind: deque[tuple[str, Future[str]]] = deque()
        self._unsaid: set[int] = set()  # ranks that do not know how far they were heard
        self._unheard: set[int] = set()  # ranks that were sent something, and may not have heard it
        self._settled_said = 0
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)  # noqa: FBT003 - positional only
        self._closed = False
        self._path = home.link_socket
        # A context of its own: its authenticator checks only this socket, and its end waits for no other socket.
        self._context = zmq.Context()
        self._router = self._bind(home)
        self._thread = keep("nbcomm-link", self._serve, self._faults)

    def _bind(self, home: WorldDir) -> zmq.Socket[bytes]:
        address = f"ipc://{self._path}"
        if home.link_file.exists():
            info, server_secret = home.read_link(), home.read_secret()
        else:
            server_public, server_secret = zmq.curve_keypair()
            client_public, client_secret = zmq.curve_keypair()
            info = LinkInfo(address, server_public.decode(), client_public.decode(), client_secret.decode())
            home.write_secret(server_secret)
            home.write_link(info)
        self._keys = Keys(self._context, {info.client_public: name_of(HEAD)})
        router = self._context.socket(zmq.ROUTER)
        router.setsockopt(zmq.CURVE_SERVER, 1)
        router.setsockopt(zmq.CURVE_PUBLICKEY, info.server_public.encode())
        router.setsockopt(zmq.CURVE_SECRETKEY, server_secret)
        router.setsockopt(zmq.ROUTER_HANDOVER, 1)  # an agent that was replaced takes over its name
        router.setsockopt(zmq.SNDHWM, 0)
        router.setsockopt(zmq.RCVHWM, 0)
        router.setsockopt(zmq.LINGER, 0)
        try:
            router.bind(address)
        except zmq.ZMQError as error:  # no further file can be made there
            raise OSError(error.errno, error.strerror, os.fspath(self._path)) from error
        return router

    # ── other nodes, from any thread ────────────────────────────────────────────────────────────────

    def listen(self, address: str) -> str:
        """Take connections at another address, too; return it with the port that it has got.

        Args:
            address: one concrete address of this machine, as "tcp://10.0.0.1:*".

        Raises:
            zmq.ZMQError: this machine has no such address, or the port is in use.
        """
        bound: Future[str] = Future()
        self._to_bind.append((address, bound))
        self._rouse()
        return bound.result(_BIND)

    def add(
        self,
        node: int,
        public: str,
        report: Callable[[Report], None],
        admit: Callable[[int, int], bool] = lambda *_: True,
    ) -> None:
        """Let the agent of another node connect.

        Args:
            node: its number.
            public: its CURVE key, in Z85 text.
            report: called on the link's thread with what the agent reports.
            admit: called there with a rank and its pid: returns whether that is the rank's present process.
        """
        self._nodes[node] = _Node(report, admit)
        self._named[name_of(node)] = node
        self._keys.add(public, name_of(node))

    def place(self, ranks: Iterable[int], node: int) -> None:
        """Set the node that these ranks are on; without this, it is the head."""
        self._node_of.update(dict.fromkeys(ranks, node))

    def heard(self, node: int = HEAD) -> float:
        """Return when a node's agent was heard last, by `time.monotonic`."""
        return self._nodes[node].heard

    # ── sending, from any thread ────────────────────────────────────────────────────────────────────

    def deliver_to(self, receive: Receiver | None) -> None:
        """Set who gets the ranks' messages; while nobody does, they stay with the ranks."""
        self._receive = receive

    def send(self, ranks: Iterable[int], message: ToRank, buffers: Sequence[Any] = ()) -> None:
        """Send one message to some ranks, each of which does it once; a rank that has ended does nothing."""
        if isinstance(message, StatusRequest):
            self._words.extend((rank, message) for rank in ranks)
            self._rouse()
        else:
            self.send_each(dict.fromkeys(ranks, message), buffers)

    def send_each(self, messages: Mapping[int, ToRank], buffers: Sequence[Any] = ()) -> None:
        """Send some ranks a message each, as `send` does; if it cannot be done, none of them gets any."""
        encoded: dict[int, list[Any]] = {}  # one message mostly goes to all ranks, as the same object
        for message in messages.values():
            if id(message) not in encoded:
                encoded[id(message)] = [encode(message), *buffers]
        with self._lock:
            streams = [self._stream(rank) for rank in messages]
            for stream, message in zip(streams, messages.values(), strict=True):
                stream.out.add(encoded[id(message)], asks=isinstance(message, MainLoopRequest))
            self._due.update(messages)
            self._unheard.update(messages)
        self._rouse()

    def order(self, order: Order, node: int = HEAD) -> None:
        """Send an order to a node; it is lost if no agent is connected."""
        self._words.append(_Order(node, _letter(encode(order))))
        self._rouse()

    def poll(self, question: int) -> None:
        """Let each node ask all its ranks what they do; each rank that it knows answers with a `StatusReply`.

        A rank that lacks something that was sent before does not answer, but asks for it.
        """
        with self._lock:
            self._unheard = {rank for rank in self._unheard if self._streams[rank].out.newest}
            self._unsaid |= self._unheard
            if self._settled_said != self.settled:
                self._settled_said = self.settled
                self._unsaid.update(self._streams)
            unsaid, self._unsaid = self._unsaid, set()
        self._words.extend((rank, None) for rank in sorted(unsaid))
        poll = _letter(encode(Poll(question)))
        self._words.extend(_Order(node, poll) for node in self._nodes)
        self._rouse()

    def greet(self, node: int | None = None) -> None:
        """Ask all ranks, or those of a node, how far they have heard: its agent is another one, or newly connected."""
        with self._lock:
            ranks = [rank for rank in self._streams if node in (None, self._node_of.get(rank, HEAD))]
        self._words.extend((rank, Greet(asks=True)) for rank in ranks)
        self._rouse()

    def meet(self, ranks: Iterable[int]) -> None:
        """Greet ranks that another notebook has started."""
        with self._lock:
            for rank in ranks:
                self._stream(rank)
        self.greet()

    def lose(self, rank: int) -> None:
        """Forget what was sent to a rank whose process has ended."""
        with self._lock:
            self._stream(rank).end()

    def close(self) -> None:
        """Close the socket and end the thread, after everything handed over before is sent."""
        self._closed = True
        self._rouse()
        self._thread.join(5)
        self._path.unlink(missing_ok=True)

    def _stream(self, rank: int) -> NotebookStream:
        stream = self._streams.get(rank)
        if stream is None:
            stream = self._streams[rank] = NotebookStream(self._epoch)
        return stream

    def _rouse(self) -> None:
        with suppress(OSError):  # many wake-ups are already pending, or it is closed
            self._wake.send(b"\0")

    # ── the link's thread ───────────────────────────────────────────────────────────────────────────

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._woken, zmq.POLLIN)
        while not self._closed:
            with self._faults.beside("the link failed", lambda _: time.sleep(_BREATH)):
                ready = dict(poller.poll())
                if self._woken.fileno() in ready:
                    self._woken.recv(4096)
                self._bind_more()
                self._send_waiting()
                if self._router in ready:
                    self._take_arrived()
        with self._faults.beside("the last words could not be sent"):
            self._send_waiting()
        self._router.close(linger=200)
        self._keys.stop()
        self._context.term()
        self._wake.close()
        self._woken.close()

    def _bind_more(self) -> None:
        while self._to_bind:
            address, bound = self._to_bind.popleft()
            try:
                self._router.bind(address)
                bound.set_result(self._router.get_string(zmq.LAST_ENDPOINT))
            except Exception as error:  # noqa: BLE001 - who waits for it gets it
                bound.set_exception(error)

    def _send_waiting(self) -> None:
        """Send what waits, a parcel to each node: messages with numbers, and then the words that come behind them."""
        letters: dict[int, list[Letter]] = {node: [] for node in self._nodes}
        node_of = self._node_of
        with self._lock:
            words = [self._words.popleft() for _ in range(len(self._words))]
            due, self._due = self._due, set()
            for rank in sorted(due):
                stream = self._streams[rank]
                for sent in stream.out.take() if stream.known else ():
                    header = encode(stream.header(sent, self.settled))
                    letters[node_of.get(rank, HEAD)].append(Letter(rank, header, sent.frames, sent.asks))
            encoded: dict[int, bytes] = {}  # one word mostly goes to all ranks, as the same object
            for word in words:
                if isinstance(word, _Order):
                    letters[word.node].append(word.letter)
                    continue
                rank, message = word
                header = encode(self._stream(rank).header(settled=self.settled))
                if message is None:  # the agent asks with this header
                    frames = []
                else:
                    frames = [encoded.get(id(message)) or encoded.setdefault(id(message), encode(message))]
                asks = isinstance(message, StatusRequest)
                letters[node_of.get(rank, HEAD)].append(Letter(rank, header, frames, asks))
        for node, its in letters.items():
            if its:
                self._router.send_multipart([name_of(node).encode(), *pack(its)], copy=False)

    def _take_arrived(self) -> None:
        for _ in range(_MOST):
            try:
                identity, *parcel = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            name = str(parcel[0].get("User-Id"))
            node = self._named.get(name)
            if node is None or identity.bytes != name.encode():
                continue  # it holds a key, but not that of the node whose name it has
            self._nodes[node].heard = time.monotonic()
            with self._faults.beside("a parcel could not be read"), suppress(msgspec.DecodeError):
                self._decoded.clear()
                for letter in unpack([frame.buffer for frame in parcel]):
                    self._take(node, letter)

    def _take(self, node: int, letter: Letter) -> None:
        kind = "report" if letter.rank == ITSELF else "message"
        with self._faults.beside(f"a {kind} could not be taken"):  # this thread must go on
            if letter.rank == ITSELF:
                with suppress(msgspec.DecodeError):  # an agent of another version: it sends other reports
                    self._nodes[node].report(decode_report(letter.frames[0]))
            elif node != self._node_of.get(letter.rank, HEAD):
                pass  # no node speaks for the ranks of another
            elif self._receive is not None and self._is_next(letter):
                message = self._read(letter.frames[0])
                if message is not None:
                    self._receive(letter.rank, *from_frames(message, letter.frames[1:]))

    def _read(self, frame: Any) -> FromRank | None:
        """Decode a message; None if the rank is of another version. Ranks that say the same share a frame."""
        message = self._decoded.get(id(frame))
        if message is None:
            with suppress(msgspec.DecodeError):
                message = self._decoded[id(frame)] = decode_from_rank(frame)
        return message

    def _is_next(self, letter: Letter) -> bool:
        """Tell whether a message is to be delivered; ask again for one that is missing."""
        header = decode_header(letter.header)
        hello = None
        if not header.number:
            message = self._read(letter.frames[0])
            hello = message if isinstance(message, Hello) else None
        with self._lock:
            stream = self._stream(letter.rank)
            if hello is not None:
                node = self._nodes[self._node_of.get(letter.rank, HEAD)]
                if not node.admit(letter.rank, hello.pid) or not stream.meet(header):
                    return False
                self._due.add(letter.rank)
                if hello.asks or header.epoch != self._epoch:
                    self._words.append((letter.rank, Greet()))
                self._rouse()
                return True
            lacked = stream.lacking
            accepted = stream.accepts(header)
            if accepted and header.number:
                self._unsaid.add(letter.rank)
            if stream.lacking and not (lacked and header.number):
                self._words.append((letter.rank, Greet()))
                self._rouse()
            return accepted


class _Order(NamedTuple):
    """A letter to the agent of a node."""

    node: int
    letter: Letter


def _letter(order: bytes) -> Letter:
    return Letter(ITSELF, NO_HEADER, [order])


class _Node:
    """What the link knows of a node: who hears its reports, which processes are ranks there, when it was heard."""

    def __init__(self, report: Callable[[Report], None], admit: Callable[[int, int], bool]) -> None:
        self.report = report
        self.admit = admit
        self.heard = time.monotonic()
