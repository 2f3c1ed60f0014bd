"""The round trip of the link alone: a real agent, and fake ranks with real connections, in one other thread."""

from __future__ import annotations

import os
import queue
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from nbcomm.launch.link import Link
from nbcomm.protocol import Done, Greet, Hello, NodeHello, Report, Started, StatusRequest
from nbcomm.protocol.codec import decode_header, decode_to_rank, encode, to_frames
from nbcomm.protocol.framing import ANSWER, FramedSocket
from nbcomm.protocol.streams import Outgoing, RankStream
from nbcomm.world_dir import HOME_VARIABLE, WorldDir

from .rows import Row, interleaved

_CONNECTS = """
import socket, sys

asked, made = socket.socket(fileno=int(sys.argv[1])), socket.socket(socket.AF_UNIX)
made.connect(sys.argv[2])
socket.send_fds(asked, [b"!"], [made.fileno()])
asked.recv(1)
"""
"""A process that connects to the agent and hands the connection over: the agent knows ranks by their processes."""


def measure(rounds: int, *, full: bool) -> list[Row]:  # noqa: ARG001 - as the others
    """One message to each rank and one back, at several sizes."""
    return [_round_trip(n, rounds) for n in (1, 4, 8, 32)]


def _round_trip(n: int, rounds: int) -> Row:
    received: queue.SimpleQueue[int] = queue.SimpleQueue()
    reports: queue.SimpleQueue[Report] = queue.SimpleQueue()
    home = WorldDir.create()
    with ExitStack() as stack:
        stack.callback(home.remove)
        link = Link(home, reports.put)
        stack.callback(link.close)
        link.deliver_to(lambda rank, *_: received.put(rank))
        channel = FramedSocket(stack.enter_context(_agent(home)))
        while not isinstance(reports.get(), NodeHello):
            pass
        ranks = [_Rank(rank, *stack.enter_context(_process(home))) for rank in range(n)]
        for rank in ranks:
            channel.send([encode(Started(rank.number, f"rank {rank.number}", rank.pid))])
        stopped = threading.Event()
        answering = threading.Thread(target=_answer, args=(ranks, stopped), daemon=True)
        answering.start()
        stack.callback(answering.join)
        stack.callback(stopped.set)

        def trip() -> None:
            link.send(range(n), StatusRequest())
            _await(received, n)

        _await(received, n)  # their hellos
        (median,) = interleaved(rounds, trip)
    return Row(f"round trip of the link, {n} ranks", f"{median * 1e3:.2f} ms")


def _await(received: queue.SimpleQueue[int], n: int) -> None:
    for _ in range(n):
        received.get()


@contextmanager
def _agent(home: WorldDir) -> Iterator[socket.socket]:
    """Start an agent; its channel is the fork server's."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "nbcomm.node.agent_process", os.fspath(home.path), str(theirs.fileno()), "1"]
    with ours, _running(command, theirs, home):
        yield ours


@contextmanager
def _process(home: WorldDir) -> Iterator[tuple[int, socket.socket]]:
    """Start a process that connects to the agent; give its pid, and the connection."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-S", "-E", "-c", _CONNECTS, str(theirs.fileno()), os.fspath(home.agent_socket)]
    with ours, _running(command, theirs, home) as pid:
        _, (descriptor,), _, _ = socket.recv_fds(ours, 1, 1)
        with socket.socket(fileno=descriptor) as connection:
            yield pid, connection


@contextmanager
def _running(command: list[str], inherited: socket.socket, home: WorldDir) -> Iterator[int]:
    environment = {**os.environ, HOME_VARIABLE: os.fspath(home.path)}
    with inherited:
        process = subprocess.Popen(command, pass_fds=[inherited.fileno()], env=environment)  # noqa: S603 - our own
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


class _Rank:
    """Answers each question at once."""

    def __init__(self, number: int, pid: int, connection: socket.socket) -> None:
        self.number = number
        self.pid = pid
        self.framed = FramedSocket(connection)
        self._stream = RankStream(pid, Outgoing())
        self._hello()

    def _hello(self) -> None:
        self.framed.send([encode(self._stream.header()), encode(Hello(self.number, self.pid, "", 0, ""))])

    def answer(self) -> None:
        for _, (header, body, *_) in self.framed.receive() or []:
            known, message = decode_header(bytes(header)), decode_to_rank(bytes(body))
            self._stream.is_new(known)
            if isinstance(message, Greet):
                self._stream.greet(known)
            elif self._stream.accepts(known):
                self._stream.out.add(to_frames(Done(1)), asks=True)
        for sent in self._stream.out.take():
            self.framed.send([encode(self._stream.header(sent)), *sent.frames], ANSWER)


def _answer(ranks: list[_Rank], stopped: threading.Event) -> None:
    poll, by_descriptor = select.poll(), {rank.framed.fileno(): rank for rank in ranks}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    while not stopped.is_set():
        for descriptor, _ in poll.poll(50):
            by_descriptor[descriptor].answer()
