"""A rank's connection to its node's agent, which the test plays: it comes and goes, and may be slow."""

from __future__ import annotations

import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nbcomm.protocol.framing import ANSWER, ASK, OTHER, FramedSocket
from nbcomm.rank.agent_end import AgentEnd

PATIENCE = 60.0
LONG = 60_000  # milliseconds: a wait that is not ended would exceed the patience


class Agent:
    """Listens at the path as the agent does: in place of the one before."""

    def __init__(self, path: Path, backlog: int = 8) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        unfinished = path.with_suffix(".part")
        self._listener.bind(os.fspath(unfinished))
        self._listener.listen(backlog)
        self._listener.settimeout(PATIENCE)
        unfinished.replace(path)
        self._ends: list[FramedSocket] = []

    def accept(self) -> FramedSocket:
        connection, _ = self._listener.accept()
        self._ends.append(FramedSocket(connection))
        return self._ends[-1]

    def die(self) -> None:
        self._listener.close()
        for end in self._ends:
            end.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.sock"


@pytest.fixture
def start(path: Path) -> Iterator[Callable[..., Agent]]:
    agents: list[Agent] = []

    def started(backlog: int = 8) -> Agent:
        agents.append(Agent(path, backlog))
        return agents[-1]

    yield started
    for agent in agents:
        agent.die()


@pytest.fixture
def wake() -> Iterator[tuple[socket.socket, socket.socket]]:
    ends = socket.socketpair()
    for each in ends:
        each.setblocking(False)
    yield ends
    for each in ends:
        each.close()


@pytest.fixture
def end(path: Path, wake: tuple[socket.socket, socket.socket]) -> Iterator[AgentEnd]:
    made = AgentEnd(path, wake[1])
    yield made
    made.close()


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.001)
    raise AssertionError("It never came to that.")


def waited(end: AgentEnd, milliseconds: int = LONG) -> float:
    began = time.monotonic()
    end.wait(milliseconds)
    return time.monotonic() - began


# ── the connection ──────────────────────────────────────────────────────────────────────────────────


def test_it_connects_once(end: AgentEnd, start: Callable[..., Agent]) -> None:
    agent = start()
    assert not end.connected
    assert end.connect() is True
    assert end.connected
    assert end.connect() is False
    theirs = agent.accept()
    end.send([b"hello", b"there"], ASK)
    assert theirs.receive() == [(ASK, [b"hello", b"there"])]
    end.send([b"more"])
    assert theirs.receive() == [(OTHER, [b"more"])]
    theirs.send([b"do"], ANSWER)
    theirs.send([b"this"])
    assert end.receive() == [(ANSWER, [b"do"]), (OTHER, [b"this"])]
    assert end.receive() == []
    assert end.connected


def test_without_an_agent_nothing_fails(end: AgentEnd, path: Path) -> None:
    for _ in range(2):
        assert end.connect() is False
        assert not end.connected
        end.send([b"lost"])
        assert end.receive() == []
        end.close()
        path.touch()  # a file that is no socket


def test_one_who_listens_no_more_is_none(end: AgentEnd, start: Callable[..., Agent]) -> None:
    start().die()
    assert end.connect() is False
    assert not end.connected


def test_it_connects_to_the_next_agent_at_the_same_path(end: AgentEnd, start: Callable[..., Agent]) -> None:
    first = start()
    end.connect()
    theirs = first.accept()
    theirs.send([b"last words"])
    second = start()
    assert end.connect() is False  # the first one lives
    first.die()
    heard = []
    while end.connected:
        heard += end.receive()
    assert heard == [(OTHER, [b"last words"])]
    end.send([b"lost"])
    assert end.connect() is True
    end.send([b"heard"])
    assert second.accept().receive() == [(OTHER, [b"heard"])]


def test_nothing_of_an_earlier_connection_is_left_in_the_next(end: AgentEnd, start: Callable[..., Agent]) -> None:
    first = start()
    end.connect()
    theirs = first.accept()
    theirs.socket.send(b"\0\0\0\0\1\0\0\0half a message")
    end.send([bytes(4 << 20)])  # not all of it can be written
    assert end.receive() == []
    first.die()
    until(lambda: end.receive() or not end.connected)
    second = start()
    assert end.connect() is True
    theirs = second.accept()
    end.send([b"all"])
    theirs.send([b"whole"])
    assert theirs.receive() == [(OTHER, [b"all"])]
    assert end.receive() == [(OTHER, [b"whole"])]


def test_a_connection_that_is_closed_is_made_again(end: AgentEnd, start: Callable[..., Agent]) -> None:
    agent = start()
    end.connect()
    theirs = agent.accept()
    end.close()
    assert not end.connected
    with pytest.raises(EOFError):
        theirs.receive()
    end.close()
    assert end.connect() is True


def test_nonsense_ends_a_connection(end: AgentEnd, start: Callable[..., Agent]) -> None:
    agent = start()
    end.connect()
    agent.accept().socket.send(b"\xff" * 100)
    assert end.receive() == []
    assert not end.connected


def test_an_agent_that_accepts_nobody_holds_nobody_up(end: AgentEnd, start: Callable[..., Agent], path: Path) -> None:
    agent = start(backlog=0)
    first = socket.socket(socket.AF_UNIX)
    first.connect(os.fspath(path))  # it waits there, and there is room for one
    assert end.connect() is False  # and at once
    agent.accept()
    first.close()
    assert end.connect() is True


def test_without_a_free_descriptor_it_connects_later(end: AgentEnd, start: Callable[..., Agent]) -> None:
    start()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        assert end.connect() is False
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert end.connect() is True


def test_failed_tries_leave_no_descriptor_open(end: AgentEnd) -> None:
    before = set(Path("/proc/self/fd").iterdir())
    for _ in range(50):
        end.connect()
    assert set(Path("/proc/self/fd").iterdir()) <= before  # of another test some may end meanwhile


# ── waiting ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("connected", [False, True])
def test_a_wait_ends_when_it_is_woken(
    end: AgentEnd, start: Callable[..., Agent], wake: tuple[socket.socket, socket.socket], connected: bool
) -> None:
    if connected:
        start()
        end.connect()
    wake[0].send(b"\0" * 100)
    assert waited(end) < PATIENCE / 2
    with pytest.raises(BlockingIOError):
        wake[1].recv(1)  # or the next wait would end at once
    assert waited(end, 20) > 0.015
    later = threading.Timer(0.05, wake[0].send, [b"\0"])
    later.start()
    assert waited(end) < PATIENCE / 2
    later.join()


def test_a_wait_ends_when_the_agent_speaks_or_goes(end: AgentEnd, start: Callable[..., Agent]) -> None:
    agent = start()
    end.connect()
    theirs = agent.accept()
    theirs.send([b"do"])
    assert waited(end) < PATIENCE / 2
    assert end.receive() == [(OTHER, [b"do"])]
    assert waited(end, 20) > 0.015  # nothing is left to read, and nothing waits to be written
    agent.die()
    assert waited(end) < PATIENCE / 2
    assert end.receive() == []
    assert not end.connected


def test_a_wait_ends_when_the_agent_takes_more(end: AgentEnd, start: Callable[..., Agent]) -> None:
    agent = start()
    end.connect()
    theirs = agent.accept()
    end.send([bytes(4 << 20)])
    assert waited(end, 20) > 0.015  # it takes no more
    theirs.receive()
    assert waited(end) < PATIENCE / 2


def test_without_an_agent_no_wait_is_long(end: AgentEnd) -> None:
    assert 0.04 < waited(end) < PATIENCE / 2
    assert waited(end, 5) < PATIENCE / 2


# ── those who are slow, and those who are gone ──────────────────────────────────────────────────────


def test_to_send_to_an_agent_that_has_gone_is_no_error(end: AgentEnd, start: Callable[..., Agent]) -> None:
    agent = start()
    end.connect()
    agent.accept()
    agent.die()
    end.send([b"lost"])
    assert not end.connected
    end.send([b"lost, too"])
    assert end.connect() is False


def test_an_agent_that_goes_while_something_waits_for_it_is_noticed(end: AgentEnd, start: Callable[..., Agent]) -> None:
    agent = start()
    end.connect()
    agent.accept()
    end.send([bytes(4 << 20)])
    assert end.connected
    agent.die()
    assert waited(end) < PATIENCE / 2
    assert end.receive() == []
    assert not end.connected


def test_large_messages_reach_a_slow_agent_in_order(end: AgentEnd, start: Callable[..., Agent]) -> None:
    agent = start()
    end.connect()
    theirs = agent.accept()
    large = os.urandom(3 << 20)
    for number in range(3):
        end.send([b"%d" % number, large], ANSWER)
    heard: list[Any] = []
    turns = 0
    while len(heard) < 3:
        turns += 1
        assert turns < 100_000
        heard += theirs.receive() or []
        end.wait(10)
        assert end.receive() == []
    assert heard == [(ANSWER, [b"%d" % number, large]) for number in range(3)]
    assert turns > 3  # it was slow


def test_an_agent_that_reads_nothing_is_heard_all_the_same(end: AgentEnd, start: Callable[..., Agent]) -> None:
    agent = start()
    end.connect()
    theirs = agent.accept()
    end.send([bytes(8 << 20)])
    large = os.urandom(2 << 20)
    theirs.send([b"do", large])
    heard: list[Any] = []
    deadline = time.monotonic() + PATIENCE
    while not heard and time.monotonic() < deadline:
        end.wait(LONG)
        heard = end.receive()
        theirs.flush()
    assert heard == [(OTHER, [b"do", large])]


@pytest.mark.parametrize("error", [MemoryError, ConnectionResetError])
def test_a_fault_of_the_connection_costs_the_connection_only(
    end: AgentEnd, start: Callable[..., Agent], monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    agent = start()
    end.connect()
    agent.accept().send([b"do"])

    def fail(_: FramedSocket) -> list[Any]:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(FramedSocket, "receive", fail)
        assert end.receive() == []
    assert not end.connected
    assert end.connect()
    agent.accept().send([b"do"])
    assert end.receive() == [(OTHER, [b"do"])]
