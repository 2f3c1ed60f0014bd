"""The board across nodes: what a rank writes on its page is on copies of it on the other nodes before the rank goes on.

A rank writes what it is about to do on its own page, and then reads the pages of the others (`rank.collectives.
fingerprints`). On one node the later of two sees what the earlier has written. So that this holds between nodes, too, a
rank has its word copied before it reads::

    rank 0, node 0     daemon of node 0         daemon of node 1         rank 2, node 1
    writes its page
    says so ─────────→ passes it on ──────────→ writes the copy
                                     ←───────── has written it
    reads on   ←────── all have it              rank 0 can be seen  ───→ sees it when it reads

Of two ranks that differ, at least one has its copy written before the other reads. Nobody waits for a rank, but only
for the daemons of its group's nodes: one round trip. Where one does not answer, a comparison is missing, and nothing
else: the rank goes on after a second.

Each daemon has a door for the others, at a TCP address with CURVE. A node writes only the pages of its own ranks.
"""

from __future__ import annotations

import itertools
import mmap
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import zmq
from zmq.utils.monitor import parse_monitor_message

from ..board_pages import PAGE, make_page, page_of
from ..faults import Faults
from ..protocol import MirrorPeer
from ..protocol.nodes import name_of
from ..threads import keep
from ..world_dir import WorldDir
from ..world_info import LinkInfo
from .dealers import beat, dealer, door
from .keys import Keys
from .peers import listening_at, pid_of

WORD = struct.Struct("<?HHIQ")
"""What a rank sends first: whether it waits, how many nodes, bytes of the block, where on the page, the word there."""

NODE = struct.Struct("<H")
"""Then the number of each node; and then the block, which is written behind the word."""

DONE = b"+"
"""The answer to a rank that waits."""

_PASSED = struct.Struct("<QIIQ")
"""What a daemon sends first: a number if it waits, the rank, where, the word."""

_NUMBER = struct.Struct("<Q")
_MOST = 100
_BREATH = 0.1
_AT_ONCE = 1 << 16


class _Page:
    """The copy of a page of a rank on another node."""

    def __init__(self, page: mmap.mmap) -> None:
        self._bytes = memoryview(page)
        self._words = self._bytes.cast("Q")

    def write(self, at: int, word: int, block: bytes) -> None:
        """Write a block, and then the word before it, which makes it valid."""
        end = at + 8 + len(block)
        if at % 8 or end > PAGE:
            raise ValueError(f"There is no place {at} for {len(block)} bytes on a page.")
        self._bytes[at + 8 : end] = block
        self._words[at // 8] = word


class _Rank:
    """The connection of a rank of this node."""

    def __init__(self, connection: socket.socket, rank: int) -> None:
        connection.setblocking(False)  # noqa: FBT003 - positional only
        self.connection = connection
        self.rank = rank
        self.read = bytearray()


class _Other:
    """The connection to the daemon of another node."""

    def __init__(self, peer: MirrorPeer) -> None:
        self.peer = peer
        self.open = True
        self.socket: zmq.Socket[bytes]
        self.monitor: zmq.Socket[bytes]


class Mirror:
    """This daemon's part. `begin` starts its thread.

    Args:
        home: the node's directory.
        info: has the node's keys.
        host: the address of this machine at which the other nodes reach it.
        nodes: their public keys, by number.
        rank_of: returns the rank that a process is; None if it is none.

    Attributes:
        address: where other daemons write.
        public: this end's public key, in Z85 text.

    Raises:
        zmq.ZMQError: this machine has no such address.
    """

    def __init__(
        self, home: WorldDir, info: LinkInfo, host: str, nodes: Mapping[int, str], rank_of: Callable[[int], int | None]
    ) -> None:
        self._home = home
        self._info = info
        self._rank_of = rank_of
        self._faults = Faults()
        self._pages: dict[tuple[str, int], _Page] = {}  # by the node's name, and the rank
        self._ranks: dict[int, _Rank] = {}  # by descriptor
        self._others: dict[int, _Other] = {}
        self._numbers = itertools.count(1)
        self._waiting: dict[int, tuple[_Rank, set[int]]] = {}  # who waits, and for which nodes
        self._closed = self._begun = False
        self._poller = zmq.Poller()
        self._wake, self._woken = socket.socketpair()
        self._poller.register(self._woken, zmq.POLLIN)
        self._context = zmq.Context()
        self._guard = Keys(self._context, {key: name_of(node) for node, key in nodes.items()})
        public, secret = zmq.curve_keypair()
        self.public = public.decode()
        try:
            self._door = door(self._context, host, secret)
        except BaseException:
            self._let_go()
            raise
        self.address = self._door.get_string(zmq.LAST_ENDPOINT)
        self._poller.register(self._door, zmq.POLLIN)
        # The guard checks whoever connects to a socket of the context, so what connects elsewhere needs another one.
        self._outward = zmq.Context()
        self._listener: socket.socket | None = None

    def begin(self, peers: Sequence[MirrorPeer]) -> None:
        """Copy what the ranks of this node write to these nodes, and theirs to here; call this once.

        Raises:
            OSError: there is no room for the pages.
        """
        for peer in peers:
            for rank in peer.ranks:
                page = make_page(page_of(self._home.board, rank), self._home.spare_board)
                self._pages[name_of(peer.node), rank] = _Page(page)
            self._others[peer.node] = other = _Other(peer)
            self._connect(other)
        self._listener = listening_at(self._home.mirror_socket)
        self._listener.setblocking(False)  # noqa: FBT003 - positional only
        self._poller.register(self._listener, zmq.POLLIN)
        self._begun = True
        keep("nbcomm-mirror", self._serve, self._faults)

    def close(self) -> None:
        """Copy no more: the ranks go on without."""
        self._closed = True
        if self._begun:
            self._home.mirror_socket.unlink(missing_ok=True)
            with suppress(OSError):  # it is closed
                self._wake.send(b"\0")
        else:
            self._let_go()

    def _let_go(self) -> None:
        for rank in list(self._ranks.values()):
            rank.connection.close()
        for end in (self._wake, self._woken, *([self._listener] if self._begun and self._listener else [])):
            end.close()
        for other in self._others.values():
            self._disconnect(other)
        self._guard.stop()
        self._context.destroy(linger=0)
        if self._begun:
            self._outward.destroy(linger=0)

    # ── the thread ──────────────────────────────────────────────────────────────────────────────────

    def _serve(self) -> None:
        while not self._closed:
            ready = dict(self._poller.poll())
            with self._faults.beside("the copies of pages failed", lambda _: time.sleep(_BREATH)):
                self._attend(ready)
        self._let_go()

    def _attend(self, ready: dict[object, int]) -> None:
        assert self._listener is not None  # noqa: S101 - for mypy
        for other in self._others.values():
            if other.monitor in ready:
                self._look(other)
            elif other.socket in ready:
                for _ in range(_MOST):
                    try:
                        (number,) = other.socket.recv_multipart(zmq.NOBLOCK)
                    except zmq.Again:
                        break
                    self._have_written(_NUMBER.unpack(number)[0], other.peer.node)
        if self._door in ready:
            self._write_copies()
        if self._listener.fileno() in ready:
            self._accept()
        for descriptor in ready:
            rank = self._ranks.get(descriptor) if isinstance(descriptor, int) else None
            if rank is not None:
                self._hear(rank)

    # ── the ranks of this node ──────────────────────────────────────────────────────────────────────

    def _accept(self) -> None:
        assert self._listener is not None  # noqa: S101 - for mypy
        with suppress(BlockingIOError):
            connection, _ = self._listener.accept()
            rank = self._rank_of(pid_of(connection))
            if rank is None:
                connection.close()
                return
            self._ranks[connection.fileno()] = _Rank(connection, rank)
            self._poller.register(connection.fileno(), zmq.POLLIN)

    def _hear(self, rank: _Rank) -> None:
        try:
            data = rank.connection.recv(_AT_ONCE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._forget(rank)
            return
        rank.read += data
        while len(rank.read) >= WORD.size:
            waits, count, length, at, word = WORD.unpack_from(rank.read)
            begin = WORD.size + count * NODE.size
            if len(rank.read) < begin + length:
                break
            nodes = [NODE.unpack_from(rank.read, WORD.size + n * NODE.size)[0] for n in range(count)]
            block = bytes(rank.read[begin : begin + length])
            del rank.read[: begin + length]
            others = [self._others[node] for node in nodes if node in self._others and self._others[node].open]
            number = self._await(rank, others) if waits else 0
            for other in others:
                with suppress(zmq.Again):  # it has refused this node: `_look` will see that
                    other.socket.send_multipart([_PASSED.pack(number, rank.rank, at, word), block])

    def _await(self, rank: _Rank, others: Sequence[_Other]) -> int:
        """Note that a rank waits for these nodes; return the number by which they answer."""
        number = next(self._numbers)
        if others:
            self._waiting[number] = rank, {other.peer.node for other in others}
        else:
            self._answer(rank)
        return number

    def _answer(self, rank: _Rank) -> None:
        try:
            rank.connection.send(DONE)
        except OSError:
            self._forget(rank)

    def _forget(self, rank: _Rank) -> None:
        descriptor = rank.connection.fileno()
        if self._ranks.pop(descriptor, None) is not None:
            self._poller.unregister(descriptor)
            rank.connection.close()
        for number in [number for number, (who, _) in self._waiting.items() if who is rank]:
            del self._waiting[number]

    # ── other nodes ─────────────────────────────────────────────────────────────────────────────────

    def _connect(self, other: _Other) -> None:
        link = other.socket = dealer(self._outward, other.peer.public, self._info)
        beat(link)
        other.monitor = link.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        link.connect(other.peer.address)
        self._poller.register(link, zmq.POLLIN)
        self._poller.register(other.monitor, zmq.POLLIN)

    def _disconnect(self, other: _Other) -> None:
        for one in (other.socket, other.monitor):
            with suppress(KeyError):
                self._poller.unregister(one)
        other.socket.disable_monitor()
        other.monitor.close()
        other.socket.close()

    def _look(self, other: _Other) -> None:
        """Note that a connection has come, or has broken: nobody waits for that node then."""
        other.open = parse_monitor_message(other.monitor.recv_multipart())["event"] != zmq.EVENT_DISCONNECTED
        if not other.open:
            self._disconnect(other)  # with what waits there: it would be old
            self._connect(other)
            for number in list(self._waiting):
                self._have_written(number, other.peer.node)

    def _have_written(self, number: int, node: int) -> None:
        rank, nodes = self._waiting.get(number, (None, set[int]()))
        nodes.discard(node)
        if rank is not None and not nodes:
            del self._waiting[number]
            self._answer(rank)

    def _write_copies(self) -> None:
        for _ in range(_MOST):
            try:
                identity, head, block = self._door.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            number, rank, at, word = _PASSED.unpack(head.bytes)
            with self._faults.beside("the copies of pages failed"):
                self._pages[str(head.get("User-Id")), rank].write(at, word, block.bytes)
            if number:
                self._door.send_multipart([identity.bytes, _NUMBER.pack(number)])
