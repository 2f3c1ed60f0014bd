"""The ends of connections by CURVE: to the notebook, and from a rank to the daemons of other nodes."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from ..protocol import Listener
from ..world_info import LinkInfo

_BEAT, _SILENCE = 1000, 3000
"""Milliseconds between heartbeats over TCP, and without one until either end gives the connection up."""

REFUSED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
"""What a monitor tells of a key that the other end does not know."""


def dealer(context: zmq.Context[zmq.Socket[bytes]], server: str, info: LinkInfo) -> zmq.Socket[bytes]:
    """Make a DEALER that connects by CURVE, as often as it must; nothing that it sends is dropped for its number.

    If the other end refuses its key, ZeroMQ gives this connection up: sending raises `zmq.Again` then. Else it would
    wait for ever, and with it the thread that serves it.

    Args:
        context: for the socket.
        server: the public key of the other end, in Z85 text.
        info: has this end's own keys.
    """
    made = context.socket(zmq.DEALER)
    made.setsockopt_string(zmq.CURVE_SERVERKEY, server)
    made.setsockopt_string(zmq.CURVE_PUBLICKEY, info.client_public)
    made.setsockopt_string(zmq.CURVE_SECRETKEY, info.client_secret)
    made.setsockopt(zmq.LINGER, 0)
    made.setsockopt(zmq.SNDHWM, 0)
    made.setsockopt(zmq.SNDTIMEO, 0)
    made.setsockopt(zmq.RCVHWM, 0)
    made.setsockopt(zmq.RECONNECT_IVL, 50)
    made.setsockopt(zmq.RECONNECT_IVL_MAX, 250)
    return made


def beat(link: zmq.Socket[bytes]) -> None:
    """Let a socket notice a dead machine or a network that is cut, which end no connection."""
    link.setsockopt(zmq.HEARTBEAT_IVL, _BEAT)
    link.setsockopt(zmq.HEARTBEAT_TIMEOUT, _SILENCE)
    link.setsockopt(zmq.HEARTBEAT_TTL, _SILENCE)


class Connection:
    """A connection to a node's listener. It is never made again: what is sent reaches that listener, or nobody.

    One thread uses it at a time; any may call `free`.

    Attributes:
        connected: whether the other end has let it in, as far as is known.
        lost: whether nothing comes of it any more, as far as is known.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], to: Listener, info: LinkInfo) -> None:
        self.connected = self.lost = False
        with ExitStack() as failing:
            self._socket = failing.enter_context(dealer(context, to.public, info))
            self._socket.setsockopt(zmq.RECONNECT_IVL, -1)
            self._socket.setsockopt(zmq.CONNECT_TIMEOUT, _SILENCE)
            self._socket.setsockopt(zmq.HANDSHAKE_IVL, _SILENCE)
            beat(self._socket)
            failing.callback(self._socket.disable_monitor)
            events = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | REFUSED
            self._monitor = failing.enter_context(self._socket.get_monitor_socket(events))
            self._wake, self._woken = socket.socketpair()
            failing.callback(self._wake.close)
            failing.callback(self._woken.close)
            self._poller = zmq.Poller()
            for end in (self._socket, self._monitor, self._woken):
                self._poller.register(end, zmq.POLLIN)
            self._socket.connect(to.address)
            failing.pop_all()

    def look(self) -> bool:
        """Return whether something may come of it, as far as is known now."""
        while not self.lost and int(self._monitor.get(zmq.EVENTS)) & zmq.POLLIN:
            event = parse_monitor_message(self._monitor.recv_multipart())["event"]
            self.connected = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
            self.lost = not self.connected
        return not self.lost

    def send(self, frames: Sequence[Any]) -> None:
        """Send a message; it waits for the other end to let this one in.

        Raises:
            ConnectionError: the connection is lost.
        """
        try:
            self._socket.send_multipart(frames)
        except zmq.Again:
            self.lost = True
            raise ConnectionError("its other end has gone") from None

    def receive(self, patience: float | None = None) -> list[bytes] | None:
        """Wait for a message; return None if none comes within so many seconds.

        Raises:
            ConnectionError: the connection is lost, or another thread has called `free`.
        """
        while True:
            ready = dict(self._poller.poll(None if patience is None else max(0, int(1000 * patience))))
            if self._socket in ready:
                return self._socket.recv_multipart(zmq.NOBLOCK)
            if self._woken.fileno() in ready:
                raise ConnectionError("it was let go")
            if self._monitor in ready and not self.look():
                raise ConnectionError("its other end has gone")
            if not ready:
                return None

    def free(self) -> None:
        """Let `receive` fail, now or later; any thread may call this."""
        with suppress(OSError):  # it was closed a moment ago
            self._wake.send(b"\0")

    def close(self) -> None:
        """Close it."""
        self._socket.disable_monitor()
        self._monitor.close()
        self._socket.close()
        self._wake.close()
        self._woken.close()


class Outward:
    """Makes the connections of one process to other nodes, which all share one context.

    Args:
        info: has this process's own keys.
    """

    def __init__(self, info: LinkInfo) -> None:
        self._info = info
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None

    def open(self) -> Callable[[Listener], Connection]:
        """Return what connects to a listener. Call this on one thread, behind all forks."""
        if self._context is None:
            self._context = zmq.Context()
        context = self._context
        return lambda to: Connection(context, to, self._info)
