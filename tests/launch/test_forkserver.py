"""The fork server, alone: a real one in a home of its own, and whoever connects to it."""

from __future__ import annotations

import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from nbcomm.errors import StartError
from nbcomm.home import HOME_VARIABLE, Home
from nbcomm.launch.client import ForkServerClient
from nbcomm.launch.orders import Exited, Start

PATIENCE = 60.0


class Served:
    """A client, its fork server, and the deaths that it reported."""

    def __init__(self, pythonpath: str = os.environ.get("PYTHONPATH", "")) -> None:
        self.pythonpath = pythonpath
        self.exits: queue.Queue[Exited] = queue.Queue()
        self.home = Home.create()
        self.client = ForkServerClient(self.home, self.exits.put)
        self.ready = self.client.wait_ready(PATIENCE)
        self.process = psutil.Process(self.client._process.pid)

    def start(self, key: str, *argv: str, what: str = "engine", cwd: str = ".") -> psutil.Process:
        environment = {**os.environ, HOME_VARIABLE: str(self.home.path), "PYTHONPATH": self.pythonpath}
        order = Start(key, what, list(argv), environment, cwd, str(self.home.path / f"{key}.log"))
        return psutil.Process(self.client.start(order))

    def engine_that_waits(self, key: str = "waits") -> psutil.Process:
        """An engine that waits long for a controller which never comes."""
        return self.start(key, f"--profile-dir={self.home.profile}", "--IPEngine.wait_for_url_file=300")

    def hang_up(self) -> None:
        """Do as a notebook does that is killed."""
        assert self.client._socket is not None
        self.client._socket.shutdown(socket.SHUT_RDWR)

    def await_end(self) -> None:
        # Its parent is this process, whose client waits for it on a thread.
        deadline = time.monotonic() + PATIENCE
        while self.client._process.poll() is None:
            assert time.monotonic() < deadline, "the fork server lives on"
            threading.Event().wait(0.01)


@pytest.fixture
def served() -> Iterator[Served]:
    """One that the test may end."""
    made = Served()
    yield made
    made.client.shutdown()


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Served]:
    """One that the test may end, soon there: it forks nothing, and finds no torch to count GPUs with."""
    before = os.environ.get("PYTHONPATH", "")
    (tmp_path / "torch.py").write_text("raise ImportError('left out to save time')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("NBCOMM_START", "spawn")
    made = Served(before)
    yield made
    made.client.shutdown()


@pytest.fixture(scope="module")
def lasting() -> Iterator[Served]:
    """One that tests share which leave it alive."""
    made = Served()
    yield made
    made.client.shutdown()


def test_children_are_forked_here_and_their_end_is_told(lasting: Served) -> None:
    assert lasting.ready.forks, lasting.ready.why
    lasting.start("hasty", "--no-such-option=1")
    ended = lasting.exits.get(timeout=PATIENCE)
    assert (ended.key, ended.status) == ("hasty", 2)
    assert "no-such-option" in (lasting.home.path / "hasty.log").read_text()


def test_a_key_can_be_used_again(lasting: Served) -> None:
    pids = set()
    for _ in range(2):
        try:
            pids.add(lasting.start("again", "--no-such-option=1").pid)
        except psutil.NoSuchProcess as gone:  # faster than we could look
            pids.add(gone.pid)
        assert lasting.exits.get(timeout=PATIENCE).key == "again"
    assert len(pids) == 2


def test_a_child_leads_a_group(lasting: Served) -> None:
    child = lasting.engine_that_waits()
    deadline = time.monotonic() + PATIENCE
    while os.getpgid(child.pid) != child.pid:  # its first deed after the fork
        assert time.monotonic() < deadline
    assert child.ppid() == lasting.process.pid


def test_garbage_ends_its_own_connection_only(lasting: Served) -> None:
    for garbage in (b"hello\n", b'{"type":"Evil"}\n', b"\xff\xfe\n", b'{"type":"Start"}\n'):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.settimeout(PATIENCE)
            stranger.connect(os.fspath(lasting.home.forkserver_socket))
            stranger.sendall(garbage)
            while stranger.recv(4096):
                pass
    assert lasting.engine_that_waits("still").is_running()


def test_without_children_it_ends_with_its_notebook(light: Served) -> None:
    light.client.set_lease(600.0)  # there is nothing to keep for so long
    light.hang_up()
    light.await_end()
    assert not light.home.path.exists()


def test_with_children_it_ends_after_the_lease(served: Served) -> None:
    child = served.engine_that_waits()
    served.client.set_lease(1.0)
    with socket.socket(socket.AF_UNIX) as other:  # what was ordered before has been read when this is welcomed
        other.connect(os.fspath(served.home.forkserver_socket))
        assert other.recv(4096)
        served.hang_up()
        assert child.is_running()
    served.await_end()
    assert not child.is_running()
    assert not served.home.path.exists()


def test_shutdown_ends_all_at_once(light: Served) -> None:
    child = light.engine_that_waits()
    assert child.is_running()
    light.client.shutdown()
    assert not child.is_running()
    assert not light.home.path.exists()


def test_a_shutdown_does_not_wait_for_imports() -> None:
    home = Home.create()
    client = ForkServerClient(home)
    began = time.monotonic()
    client.shutdown()
    assert time.monotonic() - began < PATIENCE / 10
    assert not home.path.exists()


def test_a_server_that_was_killed_is_noticed(light: Served) -> None:
    light.process.kill()
    light.await_end()
    with pytest.raises(StartError, match="fork server"):
        light.engine_that_waits()


def test_where_forks_are_unwanted_children_are_started_plainly(light: Served) -> None:
    assert (light.ready.forks, light.ready.why) == (False, "NBCOMM_START=spawn")
    child = light.engine_that_waits()
    assert "nbcomm.rank.engine" in child.cmdline()
    child.kill()
    assert light.exits.get(timeout=PATIENCE) == Exited("waits", child.pid, -signal.SIGKILL)


def test_a_server_that_cannot_import_tells_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ipyparallel.py").write_text("raise ImportError('broken on purpose')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    home = Home.create()
    client = ForkServerClient(home)
    with pytest.raises(StartError, match="broken on purpose"):
        client.wait_ready(PATIENCE)
    client.shutdown()
    assert not home.path.exists()
