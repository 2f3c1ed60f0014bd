"""The notebook's end of the link: one socket and one thread, for every rank and each node's daemon.

A ROUTER takes the connections of all: on the notebook's machine in the world's private directory, from other machines
at a TCP address. CURVE lets both ends prove that they hold their keys, and encrypts the traffic. Each process has a key
of its own, which tells who it is: none can speak as another one, or as a node, nor hear what is for it. A daemon thread
owns the socket. A thread that wants to send gives it the message and wakes it. What arrives goes to callbacks on
that thread, which must be quick.

Each rank has a stream (`protocol.streams`), so that what is sent to it is done once, whatever breaks in between, and
what is large travels in chunks (`protocol.chunks`).
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from typing import Any

import msgspec
import zmq

from ..faults import Faults
from ..node.keys import Keys
from ..protocol import FromRank, Greet, Hello, Order, Output, Report, StatusRequest, ToRank
from ..protocol.chunks import Piece, Receiving, Sending
from ..protocol.codec import decode_from_rank, decode_piece, decode_report, encode, from_frames
from ..protocol.losses import bytes_lost, instead
from ..protocol.nodes import HEAD, Unsaid, name_of, rank_name, unheard
from ..protocol.requests import MainLoopRequest
from ..protocol.streams import Header, NotebookStream
from ..threads import keep
from ..world_dir import WorldDir
from ..world_info import LinkInfo

Receiver = Callable[[int, FromRank, Sequence[Any]], None]
"""Called with the rank, its message, and the raw frames after it."""

_BACKOFF = 0.1
"""Seconds of pause after a fault of the link's own: one that repeats at once must not use up a core."""

_MOST = 100
"""Messages that are read before waiting ones are sent: an interrupt must not queue behind output."""

_BIND = 5.0
"""Seconds in which the link's thread must have bound an address."""

_MOST_ROUTES = 8
"""Connections of one key that are known: there are several only for a moment, or where somebody has copied it."""

_OFTEN = 20
"""Questions without an answer after which a rank is asked less and less often: one that was stopped reads them all, and
then an interrupt. It is still asked, because its answers may have been lost here, and it says nothing else."""


class Link:
    """The notebook's socket, bound to the world's address. It has one node, the head; `add` adds others.

    Args:
        home: the world's directory; the link file is written there for daemon and ranks. An existing one was written by
            an earlier notebook: its address and its keys are used again, and they connect by themselves.
        report: called on the link's thread with what the head's daemon reports.

    Attributes:
        acknowledged: the last request that was received completely; ranks need not keep their messages about it.
        tell: called with a sentence about what a rank has said and could not be read.
    """

    def __init__(self, home: WorldDir, report: Callable[[Report], None]) -> None:
        self.acknowledged = 0
        self._nodes = {HEAD: _Node(report)}
        self._named = {name_of(HEAD): HEAD}
        self.tell: Callable[[str], object] = lambda _: None
        self._receive: Receiver | None = None
        self._faults = Faults()
        self._session_id = home.next_session_id()
        self._lock = threading.Lock()
        self._ends: dict[int, _End] = {}  # by rank
        self._present: dict[str, _End] = {}  # by the name of the process that is listened to
        self._due: set[int] = set()  # ranks for which something waits
        self._notifications: deque[tuple[int, ToRank]] = deque()  # messages without a number
        self._orders: deque[tuple[int, bytes]] = deque()
        self._reports: deque[tuple[int, bytes]] = deque()
        self._routes: dict[str, list[bytes]] = {}  # by name, the connections; the one that was heard last is the last
        self._read_last: tuple[bytes, FromRank] | None = None
        self._to_bind: deque[tuple[str, Future[str]]] = deque()
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)  # noqa: FBT003 - positional only
        self._closed = self._left = False
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
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)  # what has gone is said, and not hidden
        router.setsockopt(zmq.SNDHWM, 0)
        router.setsockopt(zmq.RCVHWM, 0)
        router.setsockopt(zmq.LINGER, 0)
        try:
            router.bind(address)
        except zmq.ZMQError as error:  # no further file can be made there
            raise OSError(error.errno, error.strerror, os.fspath(self._path)) from error
        return router

    # ── who may speak, from any thread ──────────────────────────────────────────────────────────────

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

    def add(self, node: int, public: str, report: Callable[[Report], None]) -> None:
        """Let the daemon of another node connect.

        Args:
            node: its number.
            public: its CURVE key, in Z85 text.
            report: called on the link's thread with what the daemon reports.
        """
        self._nodes[node] = _Node(report)
        self._named[name_of(node)] = node
        self._keys.add(public, name_of(node))

    def admit(self, rank: int, start: int, public: str) -> None:
        """Listen to the process of a start as a rank, and no more to the one before it.

        Args:
            rank: which.
            start: the number of the order.
            public: the process's CURVE key, in Z85 text.
        """
        with self._lock:
            end = self._end(rank)
            if start > end.start:
                self._keys.add(public, rank_name(rank, start))  # first: if it fails, the next table is taken over anew
                self._forget(end)
                end.start, end.public = start, public
                self._present[end.name] = end

    def dismiss(self, rank: int, start: int) -> None:
        """Listen no more to the process of a start: it has ended, or nobody wants it."""
        with self._lock:
            end = self._ends.get(rank)
            if end is not None and end.start == start:
                self._forget(end)

    def keys(self, ranks: Iterable[int]) -> dict[str, str]:
        """Return the names of the present processes of ranks, by their public keys."""
        with self._lock:
            ends = [self._ends[rank] for rank in ranks if rank in self._ends]
            return {end.public: end.name for end in ends if end.name in self._present}

    def _forget(self, end: _End) -> None:
        self._present.pop(end.name, None)
        self._routes.pop(end.name, None)
        self._keys.remove(end.public)

    def heard(self, node: int = HEAD) -> float:
        """Return when a node's daemon was heard last, by `time.monotonic`."""
        return self._nodes[node].heard

    # ── sending, from any thread ────────────────────────────────────────────────────────────────────

    def deliver_to(self, receive: Receiver | None) -> None:
        """Set who gets the ranks' messages; while nobody does, they stay with the ranks."""
        self._receive = receive

    def send(self, ranks: Iterable[int], message: ToRank, buffers: Sequence[Any] = ()) -> None:
        """Send one message to some ranks, each of which does it once; a rank that has ended does nothing."""
        if isinstance(message, StatusRequest):
            self._notifications.extend((rank, message) for rank in ranks)
            self._rouse()
        else:
            self.send_each(dict.fromkeys(ranks, message), buffers)

    def send_each(self, messages: Mapping[int, ToRank], buffers: Sequence[Any] = ()) -> None:
        """Send some ranks a message each, as `send` does; if it cannot be done, none of them gets any."""
        encoded: dict[int, list[Any]] = {}  # one message mostly goes to all ranks, as the same object
        for message in messages.values():
            if id(message) not in encoded:
                encoded[id(message)] = [encode(message), *buffers]
        with self._lock, ExitStack() as failing:
            for rank, message in messages.items():
                out = self._end(rank).stream.out
                out.add(encoded[id(message)], asks=isinstance(message, MainLoopRequest))
                failing.callback(out.take_back)
            self._due.update(messages)
            failing.pop_all()
        self._rouse()

    def order(self, order: Order, node: int = HEAD) -> None:
        """Send an order to a node; it is lost if no daemon is connected."""
        self._orders.append((node, encode(order)))
        self._rouse()

    def poll(self, question: int) -> None:
        """Ask all ranks what they do; each that lives and listens answers with a `StatusReply`.

        A rank that lacks something that was sent before does not answer, but asks for it.
        """
        with self._lock:
            ranks = [end.rank for end in self._present.values() if end.may_be_asked()]
        self.send(sorted(ranks), StatusRequest(question))

    def meet(self, ranks: Iterable[int]) -> None:
        """Greet ranks that another notebook has started."""
        with self._lock:
            for rank in ranks:
                self._end(rank)
            self._notifications.extend((rank, Greet(asks=True)) for rank in self._ends)
        self._rouse()

    def lose(self, rank: int) -> None:
        """Forget what was sent to a rank whose process has ended."""
        with self._lock:
            end = self._end(rank)
            end.stream.end()
            end.begin_again()

    def unheard(self, rank: int, unsaid: Unsaid) -> Output | None:
        """Return what of a rank's last text was not heard from itself; None if there is nothing."""
        return unheard(unsaid, self._end(rank).taken)

    def close(self) -> None:
        """Close the socket and end the thread, after everything handed over before is sent. Twice is no error."""
        self._closed = True
        self._rouse()
        self._thread.join(5)
        if not self._left:
            self._left = True  # first: the next notebook's socket has that path
            self._path.unlink(missing_ok=True)

    def _end(self, rank: int) -> _End:
        end = self._ends.get(rank)
        if end is None:
            end = self._ends[rank] = _End(rank, NotebookStream(self._session_id))
        return end

    def _rouse(self) -> None:
        with suppress(OSError):  # many wake-ups are already pending, or it is closed
            self._wake.send(b"\0")

    # ── the link's thread ───────────────────────────────────────────────────────────────────────────

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._woken, zmq.POLLIN)
        while not self._closed:
            with self._faults.beside("the link failed", lambda _: time.sleep(_BACKOFF)):
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
        """Send what waits: to each rank messages with numbers, and then the notifications that come behind them."""
        while self._orders:
            node, order = self._orders.popleft()
            self._post(name_of(node), [order])
        leaving: list[tuple[str, Header, Sequence[Any]]] = []
        try:
            with self._lock:
                for _ in range(len(self._notifications)):
                    rank, notification = self._notifications.popleft()
                    end = self._end(rank)
                    end.notifications.append(notification)
                    self._due.add(rank)
                encoded: dict[int, bytes] = {}  # one notification mostly goes to all ranks, as the same object
                for rank in sorted(self._due):
                    end = self._ends[rank]
                    leaving += [(end.name, header, frames) for header, frames in end.leaving(self.acknowledged)]
                    while end.notifications and end.sending.idle:
                        said = end.notifications.popleft()
                        frame = encoded.get(id(said)) or encoded.setdefault(id(said), encode(said))
                        leaving.append((end.name, end.stream.header(acknowledged=self.acknowledged), [frame]))
                    self._due.discard(rank)  # last: if this round fails, the next one sends what waits for it
        finally:
            for name, header, frames in leaving:
                self._post(name, [encode(header), *frames])

    def _post(self, name: str, frames: Sequence[Any]) -> None:
        """Send a message to who was heard last of those that have a key, and are connected; else it is lost."""
        routes = self._routes.get(name, [])
        while routes:
            try:
                self._router.send_multipart([routes[-1], *frames])
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    raise
                routes.pop()
            else:
                return

    def _note_route(self, name: str, identity: bytes) -> None:
        routes = self._routes.setdefault(name, [])
        if routes[-1:] != [identity]:
            self._routes[name] = [*(each for each in routes if each != identity), identity][-_MOST_ROUTES:]

    def _take_arrived(self) -> None:
        for _ in range(_MOST):
            try:
                identity, *frames = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            except MemoryError:
                continue  # the rank repeats it
            name = self._keys.name(frames[0])
            node = self._named.get(name)
            if node is not None:
                self._note_route(name, identity.bytes)
                self._nodes[node].heard = time.monotonic()
                self._reports.append((node, frames[0].bytes))
            elif (end := self._present.get(name)) is not None:
                self._note_route(name, identity.bytes)
                with self._faults.beside("a message could not be taken", self._say), suppress(msgspec.DecodeError):
                    # CURVE let only the rank in; one of another version may send other things.
                    self._take(end, frames)
        while self._reports:  # that a rank has ended is heard behind what it has said
            node, report = self._reports.popleft()
            with self._faults.beside("a report could not be taken", self._say), suppress(msgspec.DecodeError):
                self._nodes[node].report(decode_report(report))

    def _take(self, end: _End, frames: Sequence[zmq.Frame]) -> None:
        piece = decode_piece(frames[0].buffer)
        with self._lock:
            end.asked = end.due = 0
            if end.hear(piece, self._session_id, acknowledges=len(frames) == 1):
                self._due.add(end.rank)
                self._rouse()
            if len(frames) == 1:
                end.stream.accepts(piece)
                return
            whole = end.receiving.take(piece, [frame.buffer for frame in frames[1:]])
            taken = end.receiving.due()
            said = end.stream.header(acknowledged=self.acknowledged) if taken is not None else None
        if whole is not None and self._receive is not None and self._is_next(end, piece, whole):
            if bytes_lost(whole):
                whole = instead(end.rank, whole)
            message = self._read(whole[0])
            if message is not None and getattr(message, "rank", end.rank) == end.rank:
                if isinstance(message, Output):
                    end.taken = message.taken or end.taken
                self._receive(end.rank, *from_frames(message, whole[1:]))
        if said is not None:
            acknowledgement = Piece(
                said.session_id, said.incarnation, 0, 0, said.heard, said.acknowledged, at=taken or 0
            )
            self._post(end.name, [encode(acknowledgement)])

    def _say(self, sentence: str) -> None:
        self.tell(sentence)

    def _read(self, frame: Any) -> FromRank | None:
        """Decode a message; None if the rank is of another version. Ranks often say the same, one after the other."""
        last = self._read_last
        if last is not None and last[0] == frame:
            return last[1]
        with suppress(msgspec.DecodeError):
            message = decode_from_rank(frame)
            self._read_last = bytes(frame), message
            return message
        return None

    def _is_next(self, end: _End, header: Header, frames: Sequence[Any]) -> bool:
        """Tell whether a message is to be delivered; ask again for one that is missing."""
        hello = None
        if not header.number:
            message = self._read(frames[0])
            hello = message if isinstance(message, Hello) and message.rank == end.rank else None
        with self._lock:
            stream = end.stream
            if hello is not None:
                if self._present.get(end.name) is not end or not stream.meet(header):
                    return False
                end.begin_again()
                self._due.add(end.rank)
                if hello.asks or header.session_id != self._session_id:
                    self._notifications.append((end.rank, Greet()))
                self._rouse()
                return True
            lacked = stream.lacking
            accepted = stream.accepts(header)
            if stream.lacking and not (lacked and header.number):
                self._notifications.append((end.rank, Greet()))
                self._rouse()
            return accepted


class _End:
    """What the link knows of a rank.

    Attributes:
        rank: which.
        start: the number of the start of its present process; 0 if there is none.
        public: that process's key.
        stream: to and from it; so are ``sending`` and ``receiving``.
        notifications: what waits behind the messages with numbers.
        asked: how often it was to be asked since it was heard last; at ``due`` it is asked again.
        taken: how much of its captured files its output has shown.
    """

    def __init__(self, rank: int, stream: NotebookStream) -> None:
        self.rank = rank
        self.start = 0
        self.public = ""
        self.stream = stream
        self.sending = Sending()
        self.receiving = Receiving()
        self.notifications: deque[ToRank] = deque()
        self.asked = self.due = 0
        self.taken = (0, 0)

    @property
    def name(self) -> str:
        return rank_name(self.rank, self.start)

    def begin_again(self) -> None:
        """Note that the connection or the process is another one: the stream passes on again what was not heard."""
        self.sending.clear()
        self.receiving.clear()
        self.notifications.clear()
        self.asked = self.due = 0

    def may_be_asked(self) -> bool:
        """Tell whether it may get a question more; count it."""
        self.asked += 1
        if self.asked < self.due or any(isinstance(each, StatusRequest) for each in self.notifications):
            return False
        self.due = self.asked + (self.asked // 4 if self.asked >= _OFTEN else 1)
        return True

    def hear(self, piece: Piece, session_id: int, *, acknowledges: bool) -> bool:
        """Note how much the rank has taken; return whether more is to be sent now."""
        if (piece.session_id, piece.incarnation) == (session_id, self.stream.incarnation):
            self.sending.hear(piece.heard, piece.at if acknowledges else 0)
        return not self.sending.idle and self.sending.open

    def leaving(self, acknowledged: int) -> Iterator[tuple[Header, Sequence[Any]]]:
        """Return what may leave now."""
        while self.stream.known:
            if self.sending.idle:
                self.sending.add(self.stream.out.take())
            if self.sending.idle or not self.sending.open:
                return
            yield from self.sending.leaving(lambda sent: self.stream.header(sent, acknowledged))


class _Node:
    """What the link knows of a node: who hears its reports, and when it was heard."""

    def __init__(self, report: Callable[[Report], None]) -> None:
        self.report = report
        self.heard = time.monotonic()
