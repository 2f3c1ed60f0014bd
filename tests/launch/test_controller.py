"""ipyparallel's controller is started once, when it is asked for; nothing of a start that fails is left."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nbcomm.errors import Interrupted, StartError, StateError
from nbcomm.launch import controller
from nbcomm.launch.controller import Controller
from nbcomm.launch.process_table import Process
from nbcomm.protocol import Exited
from nbcomm.world_dir import WorldDir

_FILES = ("ipcontroller-client.json", "ipcontroller-engine.json")


class Node:
    """A node that starts nothing, and remembers what it was asked for; it is the only one."""

    host = "127.0.0.1"

    def __init__(self, home: WorldDir) -> None:
        self.home = home
        self.processes: dict[str, Process] = {}
        self.started: list[list[str]] = []
        self.on_start = lambda: None

    def of(self, _key: str) -> Node:
        return self

    def start(self, key: str, what: str, argv: list[str], *, given_up: Any) -> Process:
        if given_up():
            raise Interrupted
        assert (key, what) == ("controller", "controller")
        self.started.append(argv)
        self.processes[key] = Process(len(self.started), 4242)
        self.on_start()
        return self.processes[key]

    def abandon(self, key: str) -> None:
        self.processes.pop(key, None)

    def log_tail(self, _key: str) -> str:
        return "its last words"

    def end(self, status: int) -> None:
        process = self.processes["controller"]
        process.exited = Exited(process.start, "controller", process.pid, status)

    def write(self, names: tuple[str, ...] = _FILES, text: str = '{"a": 1}') -> None:
        folder = self.home.profile / "security"
        folder.mkdir(exist_ok=True)
        for name in names:
            (folder / name).write_text(text)


@pytest.fixture
def node() -> Iterator[Node]:
    made = Node(WorldDir.create())
    yield made
    made.home.remove()


@pytest.fixture
def asked(node: Node) -> Controller:
    nodes: Any = node
    return Controller(nodes)


def test_it_does_not_exist_before_it_is_asked_for(node: Node, asked: Controller) -> None:
    assert (asked.exists, asked.end, asked.connection) == (False, "", "")
    assert node.started == []


def test_it_is_started_once(node: Node, asked: Controller) -> None:
    node.on_start = node.write
    assert asked.await_ready() == '{"a": 1}'
    assert asked.await_ready() == '{"a": 1}'
    (arguments,) = node.started
    assert f"--profile-dir={node.home.profile}" in arguments
    assert "--ip=127.0.0.1" in arguments
    keys = node.home.profile / "ipcontroller_config.py"
    assert keys.stat().st_mode & 0o777 == 0o600
    assert "IPController.enable_curve = True" in keys.read_text()


def test_it_is_ready_when_it_has_written_all_of_its_files(node: Node, asked: Controller) -> None:
    node.on_start = lambda: node.write(_FILES[:1])
    timer = threading.Timer(0.1, lambda: (node.write(_FILES[1:], '{"half'), node.write(_FILES[1:])))
    timer.start()
    assert asked.await_ready() == '{"a": 1}'
    timer.join()


def test_one_that_ends_while_it_starts_is_named_and_can_be_asked_for_again(node: Node, asked: Controller) -> None:
    node.on_start = lambda: (node.write(_FILES[:1]), node.end(3))
    with pytest.raises(StartError, match=r"^ipyparallel's controller ended with exit code 3\. Its log ends:\nits last"):
        asked.await_ready()
    assert (asked.exists, asked.end) == (False, "")
    node.on_start = node.write
    assert asked.await_ready() == '{"a": 1}'


def test_one_that_was_begun_and_has_ended_is_named_and_not_begun_again(node: Node, asked: Controller) -> None:
    asked.begin()
    node.end(3)
    with pytest.raises(StartError, match=r"^ipyparallel's controller ended with exit code 3\."):
        asked.await_ready()
    assert len(node.started) == 1
    asked.begin()  # the next time that somebody asks
    assert len(node.started) == 2


def test_one_that_takes_too_long_is_ended(node: Node, asked: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "_TIMEOUT", 0.05)
    with pytest.raises(StartError, match=r"^ipyparallel's controller did not start within 0\.05 s\."):
        asked.await_ready()
    assert not asked.exists


def test_an_interrupt_while_it_starts_leaves_nothing(
    node: Node, asked: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def press(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(controller.time, "sleep", press)
    with pytest.raises(KeyboardInterrupt):
        asked.await_ready()
    assert not asked.exists


def test_one_that_has_ended_is_named_and_replaced_on_its_ports(node: Node, asked: Controller) -> None:
    node.on_start = node.write
    asked.await_ready()
    node.end(-signal.SIGKILL)
    assert asked.end == "was killed by SIGKILL"
    with pytest.raises(StateError, match=r"^ipyparallel's controller was killed by SIGKILL, so .*%distributed heal"):
        asked.await_ready()
    with pytest.raises(Interrupted):
        asked.replace(lambda: True)
    assert asked.end, "it is as dead as before"
    asked.replace()
    assert node.started[-1][-1] == "--reuse"
    assert (asked.end, asked.await_ready()) == ("", '{"a": 1}')


def test_another_notebook_finds_it(node: Node, asked: Controller) -> None:
    node.on_start = node.write
    asked.await_ready()
    nodes: Any = node
    later = Controller(nodes)
    assert later.exists
    assert later.await_ready() == '{"a": 1}'
    assert len(node.started) == 1
    assert Path(later.client_file).name == _FILES[0]
