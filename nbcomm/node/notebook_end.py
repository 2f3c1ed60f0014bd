"""An end of a connection to the notebook: a node's, or a rank's. It knows whether a notebook is there.

The connection is made again by itself, whenever a notebook binds the world's address. What is sent while there is none
is dropped: ranks and notebook repeat what the other has not heard. Each connection has a socket of its own, so that
nothing for one notebook waits for the next one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from ..world_info import LinkInfo
from .dealers import REFUSED, beat, dealer

_MOST = 100
"""Messages that are read in one turn: other things must not wait behind them."""

_LAST = 500
"""Milliseconds in which a notebook must take the last words."""

_PAUSE = 0.05
"""Seconds until it is tried again where a notebook refuses the key: one that has just come does not know all yet."""


class NotebookEnd:
    """The socket, which is replaced after each connection.

    Args:
        context: for its sockets.
        info: where the notebook is, and the keys.
        poller: is told which sockets to watch.

    Attributes:
        link: the socket.
        monitor: tells when it is connected, and when not.
        connected: whether a notebook is there.
        connections: how many there have been.
        closed: it could not be opened again, or was refused; call `open`.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], info: LinkInfo, poller: zmq.Poller) -> None:
        self.connected = False
        self.connections = 0
        self.closed = True
        self._context = context
        self._info = info
        self._poller = poller
        self._again = 0.0
        self.open()

    def open(self) -> None:
        """Make the sockets, and connect; after a refusal, only when a moment has passed.

        Raises:
            zmq.ZMQError: it stays closed, for example because too many files are open.
        """
        if time.monotonic() < self._again:
            return
        with ExitStack() as failing:
            self.link = failing.enter_context(dealer(self._context, self._info.server_public, self._info))
            if self._info.tunnelled or self._info.address.startswith("tcp://"):
                beat(self.link)
            failing.callback(self.link.disable_monitor)
            events = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | REFUSED
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
        self.closed, self.connected = True, False
        self._poller.unregister(self.link)
        self._poller.unregister(self.monitor)
        self.link.disable_monitor()
        self.monitor.close()
        self.link.close(linger)

    def looks_up(self) -> Iterator[bool]:
        """Read what the monitor tells: True for a new connection, False for the loss of one.

        What the lost one has brought can be received until the next step.
        """
        while not self.closed:
            try:
                frames = self.monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            event = parse_monitor_message(frames)["event"]
            self.connected = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
            self.connections += self.connected
            if event & REFUSED:
                self._again = time.monotonic() + _PAUSE
                self._close()
                return
            yield self.connected
            if not self.connected:
                self._close()
                self.open()

    def receive(self) -> Iterator[list[zmq.Frame]]:
        """Read the messages that have come: the frames of each."""
        for _ in range(_MOST):
            if self.closed:
                return
            try:
                frames = self.link.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            except MemoryError:  # of one that was read in part, the rest means nothing; the notebook repeats it
                self._close()
                return
            yield frames

    def send(self, frames: Sequence[Any]) -> None:
        """Send a message; drop it if no notebook is there."""
        if self.connected:
            with suppress(zmq.Again):  # its key is refused, as is about to be noticed
                self.link.send_multipart(frames)
