"""The notebook's end of the link: one socket and one thread, for the node's agent and, through it, every rank.

A ROUTER in the world's private directory takes the connection of the agent (CURVE: both ends prove that they hold the
world's keys, and the traffic is encrypted). A node's name is bound to its key. A daemon thread owns the socket. A
thread that wants to send gives it the message and wakes it. What arrives goes to callbacks on that thread, which must
be quick.

Each rank has a stream (`protocol.streams`), so that what is sent to it is done once, whatever breaks in between.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils import z85

from ..faults import Faults
from ..protocol import FromRank, Greet, Hello, Order, Poll, Report, StatusRequest, ToRank
from ..protocol.codec import decode_from_rank, decode_header, decode_report, encode, from_frames
from ..protocol.parcels import ITSELF, NO_HEADER, NODE, Letter, pack, unpack
from ..protocol.requests import MainLoopRequest
from ..protocol.streams import NotebookStream
from ..threads import keep
from ..world_dir import LinkInfo, WorldDir

Receiver = Callable[[int, FromRank, Sequence[Any]], None]
"""Called with the rank, its message, and the raw frames after it."""

_BREATH = 0.1
"""Seconds of pause after a fault of the link's own: one that repeats at once must not use up a core."""

_MOST = 100
"""Parcels that are read before waiting messages are sent: an interrupt must not queue behind output."""


class Link:
    """The notebook's socket, bound to the world's address.

    Args:
        home: the world's directory; the link file is written there for the agent. An existing one was written by an
            earlier notebook: its address and its keys are used again, and the agent connects by itself.
        report: called on the link's thread with what the agent reports.
        admit: called there with a rank and its pid: returns whether that is the rank's present process.

    Attributes:
        settled: the last request that was received completely; ranks need not keep their messages about it.
        heard: when the agent was heard last, by `time.monotonic`.
    """

    def __init__(
        self, home: WorldDir, report: Callable[[Report], None], admit: Callable[[int, int], bool] = lambda *_: True
    ) -> None:
        self.settled = 0
        self.heard = time.monotonic()
        self._report = report
        self._admit = admit
        self._receive: Receiver | None = None
        self._faults = Faults()
        self._epoch = home.next_epoch()
        self._lock = threading.Lock()
        self._streams: dict[int, NotebookStream] = {}
        self._due: set[int] = set()  # ranks with messages that are not passed on
        self._decoded: dict[int, FromRank] = {}  # of the parcel that is read, whose frames live as long
        self._words: deque[Letter | tuple[int, ToRank | None]] = deque()  # orders, and messages without a number
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
        nodes = _Nodes(self._context)
        nodes.names[info.client_public.encode()] = NODE.decode()
        nodes.start()
        nodes.configure_curve_callback("*", nodes)
        self._authenticator = nodes
        router = self._context.socket(zmq.ROUTER)
        router.setsockopt(zmq.CURVE_SERVER, 1)
        router.setsockopt(zmq.CURVE_PUBLICKEY, info.server_public.encode())
        router.setsockopt(zmq.CURVE_SECRETKEY, server_secret)
        router.setsockopt(zmq.ROUTER_HANDOVER, 1)  # an agent that was replaced takes over its name
        router.setsockopt(zmq.SNDHWM, 0)
        router.setsockopt(zmq.RCVHWM, 0)
        router.setsockopt(zmq.LINGER, 0)
        router.bind(address)
        return router

    def deliver_to(self, receive: Receiver | None) -> None:
        """Set who gets the ranks' messages; while nobody does, they stay with the ranks."""
        self._receive = receive

    # ── sending, from any thread ────────────────────────────────────────────────────────────────────

    def send(self, ranks: Iterable[int], message: ToRank, buffers: Sequence[Any] = ()) -> None:
        """Send one message to some ranks, each of which does it once; a rank that has ended does nothing."""
        if isinstance(message, StatusRequest):
            self._words.extend((rank, message) for rank in ranks)
        else:
            frames, asks = [encode(message), *buffers], isinstance(message, MainLoopRequest)
            with self._lock:
                for rank in ranks:
                    self._stream(rank).out.add(frames, asks=asks)
                    self._due.add(rank)
                    self._unheard.add(rank)
        self._rouse()

    def order(self, order: Order) -> None:
        """Send an order to the node; it is lost if no agent is connected."""
        self._words.append(Letter(ITSELF, NO_HEADER, [encode(order)]))
        self._rouse()

    def poll(self, question: int) -> None:
        """Let the node ask all its ranks what they do; each rank that it knows answers with a `StatusReply`.

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
        self._words.append(Letter(ITSELF, NO_HEADER, [encode(Poll(question))]))
        self._rouse()

    def greet(self) -> None:
        """Ask all ranks how far they have heard: the agent is another one, or newly connected."""
        with self._lock:
            ranks = list(self._streams)
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
                self._send_waiting()
                if self._router in ready:
                    self._take_arrived()
        with self._faults.beside("the last words could not be sent"):
            self._send_waiting()
        self._router.close(linger=200)
        self._authenticator.stop()
        self._context.term()
        self._wake.close()
        self._woken.close()

    def _send_waiting(self) -> None:
        """Send what waits, in one parcel: first the messages with numbers, then the words that come behind them."""
        letters = []
        with self._lock:
            words = [self._words.popleft() for _ in range(len(self._words))]
            due, self._due = self._due, set()
            for rank in sorted(due):
                stream = self._streams[rank]
                for sent in stream.out.take() if stream.known else ():
                    header = encode(stream.header(sent, self.settled))
                    letters.append(Letter(rank, header, sent.frames, sent.asks))
            encoded: dict[int, bytes] = {}  # one word mostly goes to all ranks, as the same object
            for word in words:
                if isinstance(word, Letter):
                    letters.append(word)
                    continue
                rank, message = word
                header = encode(self._stream(rank).header(settled=self.settled))
                if message is None:  # the agent asks with this header
                    letters.append(Letter(rank, header, []))
                    continue
                frame = encoded.get(id(message)) or encoded.setdefault(id(message), encode(message))
                letters.append(Letter(rank, header, [frame], isinstance(message, StatusRequest)))
        if letters:
            self._router.send_multipart([NODE, *pack(letters)], copy=False)

    def _take_arrived(self) -> None:
        for _ in range(_MOST):
            try:
                identity, *parcel = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            if identity.bytes != NODE or parcel[0].get("User-Id") != NODE.decode():
                continue  # it holds a key, but not that of the node whose name it has
            self.heard = time.monotonic()
            with self._faults.beside("a parcel could not be read"), suppress(msgspec.DecodeError):
                self._decoded.clear()
                for letter in unpack([frame.buffer for frame in parcel]):
                    self._take(letter)

    def _take(self, letter: Letter) -> None:
        kind = "report" if letter.rank == ITSELF else "message"
        with self._faults.beside(f"a {kind} could not be taken"):  # this thread must go on
            if letter.rank == ITSELF:
                with suppress(msgspec.DecodeError):  # an agent of another version: it sends other reports
                    self._report(decode_report(letter.frames[0]))
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
                if not self._admit(letter.rank, hello.pid) or not stream.meet(header):
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


class _Nodes(ThreadAuthenticator):
    """The check of keys: only nodes' may connect, and each message of a connection gets the name of its node.

    Attributes:
        names: by public key.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        super().__init__(context)
        self.names: dict[bytes, str] = {}

    def callback(self, _domain: str, key: bytes) -> bool:
        """Return whether this is a node's key, in Z85 text."""
        return key in self.names

    def curve_user_id(self, client_public_key: bytes) -> str:
        """Return the name of the node with this key, in bytes."""
        return self.names[z85.encode(client_public_key)]
