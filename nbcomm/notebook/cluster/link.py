"""The notebook's end of the links: one socket, one thread, every rank.

A ROUTER in the world's private directory takes one authenticated connection per rank (CURVE: both ends prove that they
hold the world's keys, and the traffic is encrypted). A daemon thread owns the socket. A thread that wants to send gives
it the frames and wakes it. What arrives goes to one callback on that thread, which must be quick.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import zmq
from zmq.auth.thread import ThreadAuthenticator

from ...faults import Faults
from ...protocol import FromRank, ToRank
from ...protocol.codec import decode_from_rank, encode
from ...threads import keep
from ...world_dir import LinkInfo, WorldDir

Receiver = Callable[[int, FromRank, Sequence[Any]], None]
"""Called with the rank, its message, and the raw frames after it."""


_BREATH = 0.1
"""Seconds of pause after a fault of the link's own: one that repeats at once must not use up a core."""


class Link:
    """The notebook's socket, bound to the world's address.

    Args:
        home: the world's directory; the link file is written there for the engines. An existing one was written by an
            earlier notebook: its address and its keys are used again, and the ranks connect by themselves.
        lease: seconds that a rank lives without a message from here.
        receive: called on the link's thread with everything that arrives.
    """

    def __init__(self, home: WorldDir, lease: float, receive: Receiver) -> None:
        self._receive = receive
        self._faults = Faults()
        self._outbox: deque[list[Any]] = deque()
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)  # noqa: FBT003 - positional only
        self._closed = False
        self._path = home.link_socket
        # A context of its own: its authenticator checks only this socket, and its end waits for no other socket.
        self._context = zmq.Context()
        self._router = self._bind(home, lease)
        self._thread = keep("nbcomm-link", self._serve, self._faults)

    def _bind(self, home: WorldDir, lease: float) -> zmq.Socket[bytes]:
        address = f"ipc://{self._path}"
        if home.link_file.exists():
            info, server_secret = home.read_link(), home.read_secret()
        else:
            server_public, server_secret = zmq.curve_keypair()
            client_public, client_secret = zmq.curve_keypair()
            info = LinkInfo(address, server_public.decode(), client_public.decode(), client_secret.decode(), lease)
            home.write_secret(server_secret)
            home.write_link(info)
        self._authenticator = ThreadAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback("*", _Only(info.client_public.encode()))
        router = self._context.socket(zmq.ROUTER)
        router.setsockopt(zmq.CURVE_SERVER, 1)
        router.setsockopt(zmq.CURVE_PUBLICKEY, info.server_public.encode())
        router.setsockopt(zmq.CURVE_SECRETKEY, server_secret)
        router.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a rank that was replaced takes over its name
        router.setsockopt(zmq.SNDHWM, 0)
        router.setsockopt(zmq.RCVHWM, 0)
        router.setsockopt(zmq.LINGER, 0)
        router.bind(address)
        return router

    def send(self, ranks: Iterable[int], message: ToRank, buffers: Sequence[Any] = ()) -> None:
        """Send one message to some ranks, from any thread; what is sent to a rank that is gone is dropped."""
        body = encode(message)
        for rank in ranks:
            self._outbox.append([b"rank%d" % rank, body, *buffers])
        self._rouse()

    def close(self) -> None:
        """Close the socket and end the thread, after everything handed over before is sent."""
        self._closed = True
        self._rouse()
        self._thread.join(5)
        self._path.unlink(missing_ok=True)

    def _rouse(self) -> None:
        with suppress(OSError):  # many wake-ups are already pending, or it is closed
            self._wake.send(b"\0")

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
        while self._outbox:
            self._router.send_multipart(self._outbox.popleft(), copy=False)

    def _take_arrived(self) -> None:
        # At most this many before waiting messages are sent: an interrupt must not queue behind output.
        for _ in range(100):
            try:
                identity, body, *frames = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            message = None
            with (
                self._faults.beside("a message could not be read"),
                suppress(ValueError, RecursionError, msgspec.DecodeError),
            ):
                rank, message = int(identity.bytes.removeprefix(b"rank")), decode_from_rank(body.buffer)
            if message is None:
                continue  # an engine of another version: it holds the world's keys, but sends other messages
            with self._faults.beside(f"a {type(message).__name__} could not be taken"):  # this thread must go on
                self._receive(rank, message, frames)


class _Only:
    """The credentials check for ZMQ's authenticator: one public key may connect."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def callback(self, _domain: str, key: bytes) -> bool:
        """Return whether this is the client's key."""
        return key == self._key
