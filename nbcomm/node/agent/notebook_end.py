"""The node's end of the link to the notebook: parcels, and whether a notebook is there.

The connection is made again by itself, whenever a notebook binds the world's address. What is sent while there is none
is dropped: ranks and notebook repeat what the other has not heard. Each connection has a socket of its own, so that
nothing for one notebook waits for the next one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress

import msgspec
import zmq
from zmq.utils.monitor import parse_monitor_message

from ...protocol.parcels import Letter, pack, unpack
from ...world_info import LinkInfo
from .dealers import beat, dealer

_MOST = 100
"""Parcels that are read in one turn: what the ranks say must not wait behind them."""

_LAST = 500
"""Milliseconds in which a notebook must take the last words."""


class NotebookEnd:
    """The socket of the agent, which is replaced after each connection.

    Args:
        context: for its sockets.
        info: where the notebook is, and the keys.
        poller: is told which sockets to watch.

    Attributes:
        link: the socket.
        monitor: tells when it is connected, and when not.
        connected: whether a notebook is there.
        closed: it could not be opened again; call `open`.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], info: LinkInfo, poller: zmq.Poller) -> None:
        self.connected = False
        self.closed = True
        self._context = context
        self._info = info
        self._poller = poller
        self.open()

    def open(self) -> None:
        """Make the sockets, and connect.

        Raises:
            zmq.ZMQError: it stays closed, for example because too many files are open.
        """
        with ExitStack() as failing:
            self.link = failing.enter_context(dealer(self._context, self._info.server_public, self._info))
            self.link.setsockopt_string(zmq.ROUTING_ID, self._info.name)
            if self._info.tunnelled or self._info.address.startswith("tcp://"):
                beat(self.link)
            failing.callback(self.link.disable_monitor)
            events = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
            self.monitor = failing.enter_context(self.link.get_monitor_socket(events))
            self.link.connect(self._info.address)
            failing.pop_all()
        self._poller.register(self.link, zmq.POLLIN)
        self._poller.register(self.monitor, zmq.POLLIN)
        self.closed = False

    def close(self) -> None:
        """Close it for good, when what was sent has gone out; not every notebook takes it."""
        if not self.closed:
            self._close(_LAST)
        self._context.term()

    def _close(self, linger: int = 0) -> None:
        self.closed = True
        self._poller.unregister(self.link)
        self._poller.unregister(self.monitor)
        self.link.disable_monitor()
        self.monitor.close()
        self.link.close(linger)

    def looks_up(self) -> Iterator[bool]:
        """Read what the monitor tells: True for a new connection, False for the loss of one.

        What the lost one has brought can be received until the next step.
        """
        while True:
            try:
                frames = self.monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self.connected = parse_monitor_message(frames)["event"] != zmq.EVENT_DISCONNECTED
            yield self.connected
            if not self.connected:
                self._close()
                self.open()

    def receive(self) -> Iterator[Letter]:
        """Read the letters that have come."""
        for _ in range(_MOST):
            try:
                parcel = self.link.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            with suppress(msgspec.DecodeError):  # CURVE let only the notebook in; a newer one may send other things
                yield from unpack([frame.buffer for frame in parcel])

    def send(self, letters: list[Letter]) -> None:
        """Send letters in one parcel; drop them if no notebook is there."""
        if self.connected:
            self.link.send_multipart(pack(letters), copy=False)
