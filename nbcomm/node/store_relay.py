"""The way to the store from other nodes: their ranks meet in it as those of the head do.

The head's daemon serves the store on a Unix socket. A `StoreDoor` beside it takes connections of the other nodes' at
a TCP address; CURVE lets in the nodes of this world only, and encrypts. On such a node a `StoreRelay` is where the
ranks look for the store. Both only pass bytes on: what a rank says on its connection arrives on one of its own at the
store, and back. A rank notices no difference, and a cell needs no notebook to make a group.

If the network between the two breaks, words may be lost on their way. So the relay then ends all its connections, and
each rank that waits there gets an error. The next ones reach the same store, if it is still there.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import zmq
from zmq.utils.monitor import parse_monitor_message

from ..faults import Faults
from ..threads import keep
from ..world_info import LinkInfo
from .dealers import beat, dealer, door
from .keys import Keys

_NUMBER = struct.Struct("!Q")
_OPEN, _DATA, _END, _FORGET = b"o", b"d", b"e", b"f"
"""What a message says of its connection; the last one is about all of another relay."""

_BREATH = 0.1
"""Seconds of pause after a fault: one that repeats at once must not use up a core."""

_AT_ONCE = 1 << 18
"""Bytes that are read from a connection in one turn."""

_MOST = 100
"""Messages that are read in one turn."""

_Key = tuple[bytes, int]
"""Of a connection: the relay that has it, and its number there."""


class _Pipe:
    """One end of a rank's connection, which never makes the others wait."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)  # noqa: FBT003 - positional only
        self.connection = connection
        self._waits = bytearray()

    @property
    def events(self) -> int:
        """What to poll for."""
        return zmq.POLLIN | (zmq.POLLOUT if self._waits else 0)

    def read(self) -> bytes | None:
        """Return what has come; nothing at the connection's end; None if nothing has come.

        Raises:
            OSError: the connection is broken.
        """
        with suppress(BlockingIOError):
            return self.connection.recv(_AT_ONCE)
        return None

    def write(self, data: bytes = b"") -> None:
        """Write on, behind what waits.

        Raises:
            OSError: the connection is broken.
        """
        self._waits += data
        with suppress(BlockingIOError):
            while self._waits:
                del self._waits[: self.connection.send(self._waits)]


class _Pump:
    """The common part: pipes on one side, a ZMQ socket on the other, and a thread that passes bytes on."""

    def __init__(self, name: str) -> None:
        self._faults = Faults()
        self._pipes: dict[_Key, _Pipe] = {}
        self._keys: dict[int, _Key] = {}  # by descriptor
        self._poller = zmq.Poller()
        self._context = zmq.Context()
        self._closed = False
        self._wake, self._woken = socket.socketpair()
        self._poller.register(self._woken, zmq.POLLIN)
        try:
            self._socket = self._open()
        except BaseException:
            self._let_go()
            raise
        keep(name, self._serve, self._faults)

    def close(self) -> None:
        """End all connections."""
        self._closed = True
        with suppress(OSError):  # it is closed
            self._wake.send(b"\0")

    def _open(self) -> zmq.Socket[bytes]:
        """Make the ZMQ socket; it is polled from now on."""
        raise NotImplementedError

    def _attend(self, ready: dict[object, int]) -> None:
        """Do what else is due."""

    def _take(self, frames: list[bytes]) -> None:
        """Take a message of the ZMQ socket."""
        raise NotImplementedError

    def _say(self, key: _Key, kind: bytes, data: bytes = b"") -> None:
        """Tell the other end something of a connection."""
        raise NotImplementedError

    def _serve(self) -> None:
        while not self._closed:
            ready = dict(self._poller.poll())
            with self._faults.beside("the way to the store failed", lambda _: time.sleep(_BREATH)):
                self._attend(ready)
                for number, events in ready.items():
                    key = self._keys.get(number) if isinstance(number, int) else None
                    if key is not None:
                        self._pass_on(key, events)
                if self._socket in ready:
                    for frames in _received(self._socket):
                        self._take(frames)
        self._end_all()
        self._let_go()

    def _let_go(self) -> None:
        for end in (self._wake, self._woken):
            end.close()
        self._context.destroy(linger=0)

    def _add(self, key: _Key, connection: socket.socket) -> None:
        self._pipes[key] = _Pipe(connection)
        self._keys[connection.fileno()] = key
        self._poller.register(connection.fileno(), zmq.POLLIN)

    def _write(self, key: _Key, kind: bytes, data: bytes) -> None:
        """Do what the other end tells of a connection."""
        pipe = self._pipes.get(key)
        if pipe is None:  # it has ended here, and the other end does not know that yet
            return
        if kind == _END:
            self._end(key)
            return
        try:
            pipe.write(data)
        except OSError:
            self._lose(key)
        else:
            self._poller.modify(pipe.connection.fileno(), pipe.events)

    def _pass_on(self, key: _Key, events: int) -> None:
        pipe = self._pipes[key]
        try:
            if events & zmq.POLLOUT:
                pipe.write()
                self._poller.modify(pipe.connection.fileno(), pipe.events)
            data = pipe.read() if events & ~zmq.POLLOUT else None
        except OSError:
            data = b""
        if data:
            self._say(key, _DATA, data)
        elif data is not None:
            self._lose(key)

    def _lose(self, key: _Key) -> None:
        self._end(key)
        self._say(key, _END)

    def _end(self, key: _Key) -> None:
        connection = self._pipes.pop(key).connection
        del self._keys[connection.fileno()]
        self._poller.unregister(connection.fileno())
        connection.close()

    def _end_all(self) -> None:
        for key in list(self._pipes):
            self._end(key)


def _received(source: zmq.Socket[bytes]) -> Iterator[list[bytes]]:
    for _ in range(_MOST):
        try:
            yield source.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return


class StoreDoor(_Pump):
    """The head's end: it lets the relays of other nodes in.

    Args:
        store: the path of the store's own socket.
        host: the address of this machine at which to listen.
        nodes: the public keys of the nodes, in Z85 text.

    Attributes:
        address: where it listens.
        public: its own public key, in Z85 text.

    Raises:
        zmq.ZMQError: it cannot listen there.
    """

    def __init__(self, store: Path, host: str, nodes: Iterable[str]) -> None:
        self._store = store
        self._host = host
        self._nodes = list(nodes)
        public, self._secret = zmq.curve_keypair()
        self.public = public.decode()
        super().__init__("nbcomm-store-door")

    def _open(self) -> zmq.Socket[bytes]:
        self._guard = Keys(self._context, dict.fromkeys(self._nodes, "relay"))
        made = door(self._context, self._host, self._secret)
        self.address = made.get_string(zmq.LAST_ENDPOINT)
        self._poller.register(made, zmq.POLLIN)
        return made

    def _let_go(self) -> None:
        self._guard.stop()
        super()._let_go()

    def _take(self, frames: list[bytes]) -> None:
        relay, number, kind, data = frames
        key = relay, _NUMBER.unpack(number)[0]
        if kind == _FORGET:
            for other in [other for other in self._pipes if other[0] == data]:
                self._end(other)
            return
        if kind != _OPEN:
            self._write(key, kind, data)
            return
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(os.fspath(self._store))
        except OSError:  # the store is closed just now
            connection.close()
            self._say(key, _END)
        else:
            self._add(key, connection)

    def _say(self, key: _Key, kind: bytes, data: bytes = b"") -> None:
        self._socket.send_multipart([key[0], _NUMBER.pack(key[1]), kind, data])


class StoreRelay(_Pump):
    """The end on another node: it listens where its ranks look for the store.

    Args:
        path: of the socket for the ranks.
        address: of the door.
        public: the door's key.
        info: has the node's own keys.
    """

    def __init__(self, path: Path, address: str, public: str, info: LinkInfo) -> None:
        self._path = path
        self._address = address
        self._public = public
        self._info = info
        self._next = 0
        self._listener = socket.socket(socket.AF_UNIX)
        # Ranks look for the final name: it must not be there before this listens.
        unfinished = path.with_suffix(".part")
        unfinished.unlink(missing_ok=True)
        self._listener.bind(os.fspath(unfinished))
        self._listener.listen(512)
        self._listener.setblocking(False)  # noqa: FBT003 - positional only
        super().__init__("nbcomm-store-relay")
        unfinished.rename(path)

    def close(self) -> None:
        """End all connections, and take no more."""
        self._path.unlink(missing_ok=True)
        super().close()

    def _open(self) -> zmq.Socket[bytes]:
        self._poller.register(self._listener, zmq.POLLIN)
        return self._connect()

    def _connect(self) -> zmq.Socket[bytes]:
        self._name = b"r" + secrets.token_bytes(8)  # what is on its way to an earlier name is dropped
        link = dealer(self._context, self._public, self._info)
        link.setsockopt(zmq.ROUTING_ID, self._name)
        beat(link)
        self._monitor = link.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        link.connect(self._address)
        self._poller.register(link, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        return link

    def _let_go(self) -> None:
        self._listener.close()
        with suppress(AttributeError, zmq.ZMQError):  # it was not opened
            self._socket.disable_monitor()
        super()._let_go()

    def _attend(self, ready: dict[object, int]) -> None:
        if self._monitor in ready:
            self._part()
        if self._listener.fileno() in ready:
            self._accept()

    def _part(self) -> None:
        """End all connections: the network is broken, or the door was closed."""
        parse_monitor_message(self._monitor.recv_multipart())
        self._end_all()
        self._poller.unregister(self._socket)
        self._poller.unregister(self._monitor)
        self._socket.disable_monitor()
        self._monitor.close()
        self._socket.close()
        last = self._name
        self._socket = self._connect()
        self._socket.send_multipart([_NUMBER.pack(0), _FORGET, last])

    def _accept(self) -> None:
        with suppress(BlockingIOError):
            connection, _ = self._listener.accept()
            self._next += 1
            key = b"", self._next
            self._add(key, connection)
            self._say(key, _OPEN)

    def _take(self, frames: list[bytes]) -> None:
        number, kind, data = frames
        self._write((b"", _NUMBER.unpack(number)[0]), kind, data)

    def _say(self, key: _Key, kind: bytes, data: bytes = b"") -> None:
        try:
            self._socket.send_multipart([_NUMBER.pack(key[1]), kind, data])
        except zmq.Again:  # the door has refused this node
            if key in self._pipes:
                self._end(key)
