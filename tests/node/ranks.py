"""Fake ranks for an agent: processes that connect to it, and speak as the test wants."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from nbcomm.protocol import Done, FromRank, Greet, Hello, StatusReply, ToRank
from nbcomm.protocol.codec import decode_header, decode_to_rank, encode, to_frames
from nbcomm.protocol.framing import ANSWER, OTHER, FramedSocket, Message
from nbcomm.protocol.streams import Header, Outgoing, RankStream
from nbcomm.world_dir import HOME_VARIABLE, WorldDir

from ..autopsy import OutOfTimeError

PATIENCE = 30.0

_CONNECTS = """
import os, socket, sys, time

asked = socket.socket(fileno=int(sys.argv[1]))
while asked.recv(1):
    made = socket.socket(socket.AF_UNIX)
    while True:
        try:
            made.connect(sys.argv[2])
            break
        except OSError:
            time.sleep(0.005)
    socket.send_fds(asked, [b"!"], [made.fileno()])
    made.close()
"""
"""A process that connects to a socket as often as it is asked, and hands each connection over."""


class RankProcess:
    """A process as which the test can connect: the system tells its pid at the other end."""

    def __init__(self, home: WorldDir) -> None:
        self._asked, theirs = socket.socketpair()
        self._asked.settimeout(PATIENCE)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-S", "-E", "-c", _CONNECTS, str(theirs.fileno()), os.fspath(home.agent_socket)],
                pass_fds=[theirs.fileno()],
                env={**os.environ, HOME_VARIABLE: os.fspath(home.path)},
                start_new_session=True,  # each rank leads a group
            )
        self.pid = self.process.pid
        self._made: list[socket.socket] = []

    def connect(self) -> socket.socket:
        """Return a new connection of this process to the agent."""
        self._asked.sendall(b"?")
        _, (descriptor,), _, _ = socket.recv_fds(self._asked, 1, 1)
        self._made.append(socket.socket(fileno=descriptor))
        return self._made[-1]

    def kill(self) -> None:
        """End the process; the test still holds its connections open, as its children might."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """End the process and its connections."""
        self.kill()
        self._asked.close()
        for connection in self._made:
            with suppress(OSError):
                connection.close()


class Wire:
    """A connection that waits for what must come."""

    def __init__(self, connection: socket.socket) -> None:
        self.framed = FramedSocket(connection)
        self._come: list[Message] = []

    def send(self, frames: Sequence[Any], kind: int = OTHER) -> None:
        """Send all of a message."""
        self.framed.send(frames, kind)
        deadline = time.monotonic() + PATIENCE
        while self.framed.waits:
            if time.monotonic() > deadline:
                raise OutOfTimeError("The other side takes nothing.")
            select.select([], [self.framed], [], 0.1)
            self.framed.flush()

    def next(self, patience: float = PATIENCE) -> Message:
        """Return the next message; raise EOFError if the other side hangs up instead."""
        deadline = time.monotonic() + patience
        while not self._come:
            if time.monotonic() > deadline:
                raise OutOfTimeError("The other side sends nothing.")
            select.select([self.framed], [], [], 0.1)
            self._come += self.framed.receive() or []
        return self._come.pop(0)

    def hung_up(self) -> bool:
        """Wait until the other side has hung up; what it sends before is dropped."""
        try:
            while True:
                self.next()
        except (EOFError, ConnectionError):
            return True

    def silent(self) -> bool:
        """Whether nothing has come."""
        self._come += self.framed.receive() or []
        return not self._come


class Speaker:
    """What a rank says and hears, as `nbcomm.rank.link` does it; the subclass carries it.

    Args:
        rank: which.
        pid: the process that it claims to be.
        life: of this process.
    """

    def __init__(self, rank: int, pid: int, life: int = 0) -> None:
        self.rank = rank
        self.pid = pid
        self.stream = RankStream(life or 1000 + pid, Outgoing())
        self._taken: deque[tuple[ToRank, list[bytes]]] = deque()

    def put(self, header: bytes, frames: Sequence[Any], kind: int) -> None:
        """Send."""
        raise NotImplementedError

    def get(self) -> tuple[bytes, list[bytes]]:
        """Wait for what comes next: a header and frames."""
        raise NotImplementedError

    def hello(self, *, asks: bool = True) -> Hello:
        """Say hello."""
        message = Hello(self.rank, self.pid, "host", 0, "2.13.0", asks=asks)
        self.tell(message)
        return message

    def tell(self, message: Hello | StatusReply, header: Header | None = None) -> None:
        """Say something without a number."""
        kind = ANSWER if isinstance(message, StatusReply) else OTHER
        self.put(encode(header or self.stream.header()), to_frames(message), kind)

    def say(self, message: FromRank, *buffers: Any, run: int = 0) -> None:
        """Say something that must not be lost."""
        self.stream.out.add(to_frames(message, buffers), run, asks=isinstance(message, Done))
        self.pass_on()

    def pass_on(self) -> None:
        """Send what is to be sent."""
        for sent in self.stream.out.take():
            self.put(encode(self.stream.header(sent)), sent.frames, ANSWER if sent.asks else OTHER)

    def receive(self) -> tuple[Header, ToRank, list[bytes]]:
        """Return what comes next, whatever it is."""
        header, (body, *buffers) = self.get()
        return decode_header(header), decode_to_rank(body), buffers

    def hear(self) -> tuple[ToRank, list[bytes]]:
        """Return the next message that counts, after those that keep the stream in order."""
        while not self._taken:
            self.take()
        return self._taken.popleft()

    def meet(self) -> None:
        """Say hello, and wait for the greeting."""
        self.hello()
        while not self.take():
            pass

    def take(self) -> bool:
        """Take what comes next; return whether it was a greeting to this process."""
        header, message, buffers = self.receive()
        self.stream.is_new(header)
        if isinstance(message, Greet):
            known = self.stream.greet(header)
            if message.asks or not known:
                self.hello(asks=not known)
            self.pass_on()
            return known
        if self.stream.accepts(header):
            self._taken.append((message, buffers))
        elif self.stream.lacking:
            self.hello(asks=False)
        return False


class FakeRank(Speaker):
    """A rank in a process of its own, connected to an agent."""

    def __init__(self, rank: int, process: RankProcess) -> None:
        super().__init__(rank, process.pid)
        self.process = process
        self.wire = Wire(process.connect())

    def put(self, header: bytes, frames: Sequence[Any], kind: int) -> None:
        self.wire.send([header, *frames], kind)

    def get(self) -> tuple[bytes, list[bytes]]:
        _, (header, *frames) = self.wire.next()
        return bytes(header), [bytes(frame) for frame in frames]

    def reconnect(self) -> None:
        """Connect anew, as after the loss of a connection."""
        self.wire = Wire(self.process.connect())
