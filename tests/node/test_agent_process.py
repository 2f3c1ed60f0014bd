"""The keeping of the agent's process, step by step; with a real fork server, test_forkserver does it."""

from __future__ import annotations

import errno
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from nbcomm.launch.link import Link
from nbcomm.node import agent_process
from nbcomm.node.agent.peers import listener_at, pid_of
from nbcomm.node.agent_process import AgentProcess
from nbcomm.node.processes.seat import Seat
from nbcomm.protocol import Look, NodeHello, Report
from nbcomm.protocol.codec import decode_order
from nbcomm.protocol.framing import Message
from nbcomm.world_dir import HOME_VARIABLE, WorldDir

from .ranks import PATIENCE
from .served import await_that, has_ended

_LISTENS = """
import socket, sys, time

listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print(flush=True)
time.sleep(600)
"""

_STARTS = """
import os, sys
from pathlib import Path
from nbcomm.node.processes import parenthood
from nbcomm.node.agent_process import AgentProcess
from nbcomm.world_dir import WorldDir

parenthood.die_with_parent = lambda: None  # a system that knows nothing like it, or an end before that was said
agent = AgentProcess(WorldDir(sys.argv[1]))
agent.forks = True
agent.start()
Path(sys.argv[1], "late").write_text(str(agent._pid))
os._exit(0)
"""
"""A fork server that ends when it has just forked its agent."""


@pytest.fixture
def home() -> Iterator[WorldDir]:
    made = WorldDir.create()
    yield made
    made.remove()


@pytest.fixture
def heard(home: WorldDir) -> Iterator[list[Report]]:
    """What a notebook is told."""
    told: list[Report] = []
    link = Link(home, told.append)
    yield told
    link.close()


@pytest.fixture
def agent(home: WorldDir, monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentProcess]:
    """One that is not forked: this process has threads."""
    monkeypatch.setenv(HOME_VARIABLE, os.fspath(home.path))
    made = AgentProcess(home)
    made.forks = False
    yield made
    made.end()


def _listener(home: WorldDir, named: WorldDir) -> subprocess.Popen[bytes]:
    environment = {**os.environ, HOME_VARIABLE: os.fspath(named.path)}
    command = [sys.executable, "-c", _LISTENS, os.fspath(home.agent_socket)]
    made = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
    assert made.stdout is not None
    assert made.stdout.readline() == b"\n"
    return made


def test_it_starts_and_greets(heard: list[Report], agent: AgentProcess, home: WorldDir) -> None:
    assert agent.patience is not None
    agent.start()
    assert agent.patience is None
    assert agent.channel is not None
    await_that(lambda: heard, "nobody greets")
    (hello,) = heard
    assert isinstance(hello, NodeHello)
    assert listener_at(home.agent_socket) == agent._pid
    assert not agent.reap(), "it lives"


def test_each_agent_has_a_number_of_its_own(heard: list[Report], agent: AgentProcess) -> None:
    agent.start()
    await_that(lambda: heard, "nobody greets")
    agent.end()
    await_that(agent.reap, "there is no other one")
    await_that(lambda: len(heard) == 2, "the other one does not greet")
    first, second = heard
    assert isinstance(first, NodeHello)
    assert isinstance(second, NodeHello)
    assert first.agent < second.agent


def test_one_that_is_ended_is_gone_and_ended_twice(heard: list[Report], agent: AgentProcess) -> None:
    agent.start()
    process = psutil.Process(agent._pid)
    agent.end()
    agent.end()
    assert not process.is_running()


def test_what_it_has_passed_on_is_heard_after_its_end(agent: AgentProcess, home: WorldDir) -> None:
    heard: list[Message] = []

    def hear() -> None:
        assert agent.channel is not None
        heard.extend(agent.channel.receive() or [])

    agent.last_words = hear
    link = Link(home, lambda report: link.order(Look(5)) if isinstance(report, NodeHello) else None)
    try:
        agent.start()
        assert agent.channel is not None
        assert select.select([agent.channel], [], [], PATIENCE)[0]
        agent.end()
        await_that(agent.reap, "there is no other one")
    finally:
        link.close()
    assert [decode_order(bytes(frame)) for _, (frame,) in heard] == [Look(5)]


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_one_that_cannot_be_started_leaves_nothing_and_is_tried_again_later(
    heard: list[Report], agent: AgentProcess, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    def fail(*_: object, **__: object) -> int:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    descriptors = psutil.Process().num_fds()
    now = time.monotonic()
    with monkeypatch.context() as patch:
        # A clock of its own: a busy machine may take longer for two lines than the pause between two tries.
        patch.setattr(agent_process, "time", SimpleNamespace(monotonic=lambda: now, time_ns=time.time_ns))
        patch.setattr(os, "fork", fail)
        patch.setattr(subprocess, "Popen", fail)
        agent.forks = way == "fork"
        with pytest.raises(OSError, match="temporarily unavailable"):
            agent.start()
        assert agent.channel is None
        assert not agent.reap(), "not yet"
        assert agent.patience is not None
        assert agent.patience == pytest.approx(agent_process._AGAIN)
        now += agent_process._AGAIN
        assert agent.patience == 0.0
        with pytest.raises(OSError, match="temporarily unavailable"):
            agent.reap()
    assert psutil.Process().num_fds() <= descriptors, "it leaves something open"  # an earlier test may close late
    agent.forks = False
    await_that(agent.reap, "it is not tried again")
    assert agent.channel is not None


def test_the_agent_of_an_earlier_fork_server_is_ended(heard: list[Report], agent: AgentProcess, home: WorldDir) -> None:
    agent.start()
    await_that(lambda: heard, "nobody greets")
    earlier = psutil.Process(agent._pid)
    earlier.suspend()
    AgentProcess(home).end_earlier()
    await_that(lambda: has_ended(earlier), "it lives on")


def test_an_agent_whose_fork_server_was_ended_at_its_start_does_not_serve(home: WorldDir, tmp_path: Path) -> None:
    # The seat is taken, so the agent waits; meanwhile its fork server ends, and another one finds no agent to end.
    other = Seat(home.path / "agent")
    other.take()
    environment = {**os.environ, HOME_VARIABLE: os.fspath(home.path)}
    with subprocess.Popen([sys.executable, "-c", _STARTS, os.fspath(home.path)], env=environment) as parent:
        assert parent.wait(PATIENCE) == 0
    late = psutil.Process(int((home.path / "late").read_text()))
    assert late.is_running()
    other.close()
    await_that(lambda: has_ended(late), "it serves")
    assert listener_at(home.agent_socket) == 0


def test_no_other_process_is_ended_whoever_listens_there(home: WorldDir) -> None:
    with _listener(home, home) as stranger:
        try:
            AgentProcess(home).end_earlier()
            with pytest.raises(subprocess.TimeoutExpired):
                stranger.wait(0.3)
        finally:
            stranger.kill()


def test_without_an_earlier_agent_there_is_none_to_end(home: WorldDir) -> None:
    AgentProcess(home).end_earlier()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(os.fspath(home.agent_socket))  # its file outlives it
    AgentProcess(home).end_earlier()


def test_the_system_tells_who_is_at_the_other_end(home: WorldDir) -> None:
    path = home.agent_socket
    assert listener_at(path) == 0
    with _listener(home, home) as listener:
        assert listener_at(path) == listener.pid
        listener.kill()
    assert listener_at(path) == 0
    path.unlink()
    with socket.socket(socket.AF_UNIX) as own, socket.socket(socket.AF_UNIX) as connection:
        own.bind(os.fspath(path))
        own.listen()
        connection.connect(os.fspath(path))
        accepted, _ = own.accept()
        with accepted:
            assert pid_of(accepted) == pid_of(connection) == os.getpid()
