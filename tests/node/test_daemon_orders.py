"""The daemon and its notebooks: a real one, whose zygote imports nothing, with a real link."""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from nbcomm.launch.link import Link
from nbcomm.node import store
from nbcomm.protocol import (
    Claim,
    Failed,
    LogTail,
    Look,
    NodeHello,
    NodeStatus,
    Obeyed,
    Processes,
    ReadLog,
    Ready,
    Report,
    ServeGroups,
    Serving,
    Shutdown,
    Start,
    StatusRequest,
)
from nbcomm.protocol.codec import decode_status, encode
from nbcomm.protocol.nodes import HEAD
from nbcomm.world_dir import HOME_VARIABLE, WorldDir

from .served import PATIENCE, await_that, has_ended, quickly

T = TypeVar("T")

_SPOIL = """
import os

def stumbling(owner, name):
    # Fails once for each time that a file with its name was put where this looks.
    step = getattr(owner, name)
    def stumbles(*args):
        try:
            os.unlink(os.path.join(os.environ["STUMBLES"], name))
        except FileNotFoundError:
            return step(*args)
        raise RuntimeError("on purpose")
    setattr(owner, name, stumbles)

def failing(owner, name):
    # Fails as long as a file with its name is where this looks, and notes each time in it.
    step = getattr(owner, name)
    def fails(*args):
        try:
            with open(os.path.join(os.environ["STUMBLES"], name), "r+") as file:
                file.seek(0, os.SEEK_END)
                file.write("x")
        except FileNotFoundError:
            return step(*args)
        raise RuntimeError("on purpose")
    setattr(owner, name, fails)

def spoil(module):
    for name in ("_turn", "_deliver", "_obey", "_do", "_tell", "_hear_zygote", "_tell_status", "_greet"):
        stumbling(module.Daemon, name)
    for name in ("looks_up", "receive"):
        stumbling(module.NotebookEnd, name)
    stumbling(module.Children, "end_all")
    stumbling(module.Starts, "go_on")
    stumbling(module.Rendezvous, "serve")
    stumbling(module.Children, "add")
    failing(module.Zygote, "start")
    import zmq
    for name in ("get_monitor_socket", "connect"):
        failing(zmq.Socket, name)
"""


class Notebook:
    """The notebook's end: a link, and all reports that it has heard."""

    def __init__(self, home: WorldDir) -> None:
        self.heard: queue.Queue[Report] = queue.Queue()
        self.link = Link(home, self.heard.put)

    def next(self, patience: float = PATIENCE) -> Report:
        """The next report but a greeting, which is repeated until the world is claimed."""
        while isinstance(report := self.heard.get(timeout=patience), NodeHello):
            pass
        return report

    def reported(self, kind: type[T]) -> T:
        """The next report of a kind; what comes before it is dropped."""
        while True:
            report = self.heard.get(timeout=PATIENCE)
            if isinstance(report, kind):
                return report

    def put(self, *frames: bytes) -> None:
        """Send frames as they are."""
        self.link._orders.extend((HEAD, frame) for frame in frames)
        self.link._rouse()


class Node:
    """A daemon in a process of its own."""

    def __init__(self) -> None:
        self.home = WorldDir.create()
        self.home.world_file.write_text("{}")  # a world has begun: else it would end with its notebook
        self.notebook = Notebook(self.home)
        with self.home.daemon_log.open("wb") as log:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "nbcomm.node.daemon", os.fspath(self.home.path)],
                stdout=log,
                stderr=log,
                env={**os.environ, HOME_VARIABLE: os.fspath(self.home.path)},
                start_new_session=True,
            )
        self.process = psutil.Process(self.popen.pid)
        self.hello = self.notebook.reported(NodeHello)

    def claim(self, lease: float = 60.0, pid: int = 4242) -> None:
        """Claim the world, and wait until all is told."""
        order = Claim(time.time_ns(), pid, lease)
        self.notebook.link.order(order)
        while self.notebook.next() != Obeyed(order.number):
            pass

    def leave(self) -> None:
        """Let the notebook go, and wait until that is noticed."""
        self.notebook.link.close()
        await_that(lambda: not self.status().holder, "it does not notice")

    def comes(self) -> Notebook:
        """Let another notebook come."""
        self.notebook = Notebook(self.home)
        return self.notebook

    def status(self) -> NodeStatus:
        """What it tells whoever asks."""
        with socket.socket(socket.AF_UNIX) as made:
            made.settimeout(PATIENCE)
            made.connect(os.fspath(self.home.daemon_socket))
            told = b""
            while more := made.recv(4096):
                told += more
        return decode_status(told)

    def obeys(self) -> bool:
        """Whether it is the same, and obeys; an order that was lost is given again."""
        for number in range(50):
            self.notebook.link.order(ReadLog(1000 + number, "rank 0", 1))
            try:
                while not isinstance(self.notebook.next(1.0), LogTail):
                    pass
            except queue.Empty:
                continue
            return self.popen.poll() is None
        return False

    def ranks(self) -> list[psutil.Process]:
        """What has been started there, which leads groups."""
        return [child for child in self.process.children() if os.getpgid(child.pid) == child.pid]

    def close(self) -> None:
        left = self.process.children(recursive=True) if self.popen.poll() is None else []
        log = self.home.daemon_log.read_text() if self.home.path.exists() else ""
        self.popen.kill()
        self.popen.wait()
        for one in left:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        self.notebook.link.close()
        self.home.remove()
        print(log)


@pytest.fixture
def stumbles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder in which a file lets the step with its name fail."""
    quickly(monkeypatch, tmp_path, _SPOIL)
    return tmp_path / "stumbles"


@pytest.fixture
def node(stumbles: Path) -> Iterator[Node]:
    made = Node()
    yield made
    made.close()


# ── notebooks ───────────────────────────────────────────────────────────────────────────────────────


def test_it_greets_until_the_world_is_claimed_and_then_tells_all(node: Node) -> None:
    assert node.notebook.reported(NodeHello) == node.hello == NodeHello(node.hello.daemon, 0)
    node.notebook.link.order(Claim(1, 4242, 60.0))
    told = [node.notebook.next()]
    while told[-1] != Obeyed(1):
        told.append(node.notebook.next())
    if Ready not in map(type, told):  # the zygote may still have imported then
        told.append(node.notebook.reported(Ready))
    assert {type(report) for report in told} == {Ready, Processes, Obeyed}
    (known,) = [report for report in told if isinstance(report, Processes)]
    assert known.table == []


def test_each_notebook_is_greeted(node: Node) -> None:
    for _ in range(4):
        node.claim()
        node.leave()
        assert node.comes().reported(NodeHello) == node.hello


def test_notebooks_come_and_go_and_leave_nothing_open(node: Node) -> None:
    def once() -> None:
        node.notebook.link.close()
        node.comes().reported(NodeHello)

    for _ in range(2):
        once()
    descriptors = node.process.num_fds()
    for _ in range(10):
        once()
    await_that(lambda: node.process.num_fds() <= descriptors, "it holds more open")


def test_a_claim_that_comes_just_before_the_notebook_leaves_is_taken_before(node: Node) -> None:
    """Or it would come behind the farewell, and the world be held for ever."""
    for lease in range(30, 35):
        node.process.suspend()
        node.notebook.link.order(Claim(time.time_ns(), 4343, float(lease)))
        await_that(lambda: not node.notebook.link._orders, "it is not sent")
        node.notebook.link.close()
        node.process.resume()
        await_that(lambda lease=lease: node.status().lease == lease, "it is lost")  # type: ignore[misc]
        await_that(lambda: not node.status().holder, "it is held for ever")
        node.comes().reported(NodeHello)


def test_the_status_tells_who_holds_it_and_since_when_nobody_does(node: Node) -> None:
    assert node.status().holder == 0
    node.claim(77.0)
    assert node.status() == NodeStatus(node.popen.pid, 4242, 0.0, 77.0)
    began = time.monotonic()
    node.leave()
    first = node.status()
    await_that(lambda: node.status().alone > first.alone, "time stands still")
    alone = node.status().alone
    assert alone <= time.monotonic() - began


def test_a_notebook_that_claims_nothing_is_no_notebook(node: Node) -> None:
    node.claim(77.0)
    node.leave()
    await_that(lambda: node.status().alone > 0.2, "")
    node.comes().reported(NodeHello)
    node.notebook.link.close()
    assert node.status().alone > 0.2


def test_who_connects_and_says_nothing_harms_nobody(node: Node) -> None:
    strangers = []
    for _ in range(100):
        strangers.append(socket.socket(socket.AF_UNIX))
        strangers[-1].connect(os.fspath(node.home.daemon_socket))
        with suppress(BrokenPipeError):  # the daemon has told its status, and ended the connection
            strangers[-1].send(b"\0" * 1000)
    assert node.obeys()
    before = node.process.num_fds()
    for stranger in strangers:
        stranger.close()
    await_that(lambda: node.process.num_fds() <= before, "it keeps connections of strangers")


# ── orders ──────────────────────────────────────────────────────────────────────────────────────────


def test_the_end_of_a_log_is_read_here(node: Node) -> None:
    node.home.log(3).write_text("one\ntwo\nthree\n")
    node.notebook.link.order(ReadLog(5, "rank 3", 2))
    assert node.notebook.next() == LogTail(5, "two\nthree")


@pytest.mark.parametrize(
    "frames",
    [[b"garbage"], [b""], [encode(StatusRequest())], [encode(Obeyed(1))], [b""] * 200],
    ids=["garbage", "nothing", "a message to a rank", "a report", "much of it"],
)
def test_what_is_no_order_harms_nobody(node: Node, frames: list[bytes]) -> None:
    node.claim()
    node.notebook.put(*frames)
    assert node.obeys()


def test_who_knows_the_version_is_told_no_table(node: Node) -> None:
    node.claim()
    node.notebook.link.order(Look(5, 99))
    table = node.notebook.reported(Processes)
    assert node.notebook.next() == Obeyed(5)
    node.notebook.link.order(Look(6, table.version))
    assert node.notebook.next() == Obeyed(6)


def test_a_shutdown_is_answered_and_its_end_is_told(node: Node) -> None:
    node.claim()
    zygotes = node.process.children()
    node.notebook.link.order(Shutdown(7))
    assert node.notebook.reported(Obeyed) == Obeyed(7)  # the zygote may have become ready before
    assert type(node.notebook.next()).__name__ == "Cleared"
    assert node.popen.wait(PATIENCE) == 0
    assert all(has_ended(zygote) for zygote in zygotes)
    assert not node.home.path.exists()


def test_an_end_comes_though_its_processes_could_not_be_ended(node: Node, stumbles: Path) -> None:
    node.claim()
    (stumbles / "end_all").touch()
    node.notebook.link.order(Shutdown(7))
    assert node.popen.wait(PATIENCE) == 0
    assert not (stumbles / "end_all").exists()
    assert not node.home.path.exists()


# ── the store ───────────────────────────────────────────────────────────────────────────────────────


class StoreClient:
    """Speaks to a store as a rank does."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(os.fspath(path))
        store.receive_name(self.socket)

    def ask(self, *request: Any) -> Any:
        store.send(self.socket, request)
        return store.receive(self.socket)

    def close(self) -> None:
        self.socket.close()


def served(node: Node, order: ServeGroups) -> str:
    """Have groups served; return where ranks of other nodes reach the node."""
    node.notebook.link.order(order)
    answer = node.notebook.next()
    assert isinstance(answer, Serving)
    assert answer.number == order.number
    return answer.address


def test_the_store_is_served_and_not_begun_again_by_an_order_that_comes_again(node: Node) -> None:
    first, second = node.home.store_socket(1), node.home.store_socket(2)
    served(node, ServeGroups(5, 1))
    client = StoreClient(first)
    client.ask("set", "key", b"value")
    served(node, ServeGroups(5, 1))
    assert client.ask("wait", ["key"], 0.0) == [b"value"]
    again = StoreClient(first)
    assert again.ask("check", ["key"])
    served(node, ServeGroups(6, 2))
    with pytest.raises(ConnectionError):
        client.ask("check", ["key"])
    with pytest.raises(OSError, match=r"No such file"):
        StoreClient(first)
    fresh = StoreClient(second)
    assert not fresh.ask("check", ["key"])
    for one in (client, again, fresh):
        one.close()


def test_a_store_that_another_daemon_has_left_behind_is_removed(node: Node) -> None:
    left = node.home.store_socket(1)
    left.touch()
    served(node, ServeGroups(5, 2))
    assert not left.exists()
    assert node.home.store_socket(2).is_socket()


def test_a_store_that_waits_holds_nobody_up(node: Node) -> None:
    path = node.home.store_socket(1)
    served(node, ServeGroups(5, 1))
    waiting = StoreClient(path)
    store.send(waiting.socket, ["wait", ["late"], 600.0])
    assert node.obeys()
    setting = StoreClient(path)
    setting.ask("set", "late", b"bird")
    assert store.receive(waiting.socket) == [b"bird"]
    waiting.close()
    setting.close()


def test_a_store_that_cannot_be_served_is_told_in_words(node: Node) -> None:
    node.home.store_socket(9).mkdir()
    node.notebook.link.order(ServeGroups(5, 9))
    answer = node.notebook.next()
    assert isinstance(answer, Failed)
    assert (answer.number, "Is a directory" in answer.why) == (5, True)
    served(node, ServeGroups(6, 1))
    client = StoreClient(node.home.store_socket(1))
    assert client.ask("count") == 0
    client.close()
    node.notebook.link.order(ServeGroups(7, 9))
    assert isinstance(node.notebook.next(), Failed)
    node.notebook.link.close()
    assert node.comes().reported(NodeHello).generation == 0, "the one before it was ended"


def test_the_next_notebook_is_told_what_is_served(node: Node) -> None:
    address = served(node, ServeGroups(5, 1, address="tcp://127.0.0.1:*"))
    node.notebook.link.close()
    hello = node.comes().reported(NodeHello)
    assert (hello.generation, hello.address) == (1, address)


def test_a_wait_in_the_store_ends_in_time(node: Node) -> None:
    served(node, ServeGroups(5, 1))
    client = StoreClient(node.home.store_socket(1))
    assert client.ask("wait", ["never"], 0.05) is None
    client.close()


def _start(node: Node, number: int) -> None:
    environment = {**os.environ, HOME_VARIABLE: os.fspath(node.home.path)}
    node.notebook.link.order(Start(number, f"rank {number}", "engine", [], environment, "/"))


def test_a_process_that_could_not_be_noted_is_ended_and_its_start_has_failed(node: Node, stumbles: Path) -> None:
    node.claim()
    (stumbles / "add").touch()
    _start(node, 5)
    failed = node.notebook.reported(Failed)
    assert (failed.number, "on purpose" in failed.why) == (5, True)
    _start(node, 6)
    assert node.notebook.reported(Obeyed) == Obeyed(6)
    await_that(lambda: len(node.ranks()) == 1, "it lives on, or the other one has ended")


# ── faults of its own ───────────────────────────────────────────────────────────────────────────────


def _order(node: Node) -> None:
    node.notebook.link.order(Look(time.time_ns()))


def _visit(node: Node) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.connect(os.fspath(node.home.daemon_socket))


def _another_notebook(node: Node) -> None:
    node.notebook.link.close()
    node.comes().reported(NodeHello)


def _zygote(node: Node) -> None:
    for child in node.process.children():
        child.kill()


@pytest.mark.parametrize(
    ("step", "action"),
    [
        ("looks_up", _another_notebook),
        ("_greet", _another_notebook),
        ("receive", _order),
        ("_turn", _order),
        ("_deliver", _order),
        ("_obey", _order),
        ("_do", _order),
        ("_tell", _order),
        ("go_on", _order),
        ("_hear_zygote", _zygote),
        ("_tell_status", _visit),
        ("serve", _order),
    ],
    ids=lambda it: it if isinstance(it, str) else "",
)
def test_a_step_that_fails_is_tried_again_or_costs_one_order(
    node: Node, stumbles: Path, step: str, action: Callable[[Node], None]
) -> None:
    node.claim()
    (stumbles / step).touch()

    def done() -> bool:
        action(node)
        return not (stumbles / step).exists()

    await_that(done, "the step was not done")
    assert node.obeys()
    node.claim()
    assert node.status().holder == 4242
    assert "on purpose" in node.home.daemon_log.read_text() or step == "_do"  # that is answered with it


@pytest.mark.parametrize("step", ["get_monitor_socket", "connect"])
def test_a_link_that_cannot_be_opened_again_is_tried_again(node: Node, stumbles: Path, step: str) -> None:
    before = node.process.num_fds()
    (stumbles / step).touch()
    node.notebook.link.close()
    await_that(lambda: len((stumbles / step).read_text()) > 2, "it is not tried again")
    (stumbles / step).unlink()
    assert node.comes().reported(NodeHello) == node.hello
    await_that(lambda: node.process.num_fds() <= before, "it keeps something of the failed try open")
    assert node.obeys()


def test_a_zygote_that_cannot_be_started_is_tried_again(node: Node, stumbles: Path) -> None:
    node.claim()
    (stumbles / "start").touch()
    _zygote(node)
    await_that(lambda: len((stumbles / "start").read_text()) > 2, "it is not tried again")
    assert node.obeys()
    (stumbles / "start").unlink()
    await_that(node.process.children, "none comes")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_also_where_each_turn_fails(node: Node, stumbles: Path, number: signal.Signals) -> None:
    (stumbles / "_turn").mkdir()  # which `unlink` refuses each time
    node.process.send_signal(number)
    assert node.popen.wait(PATIENCE) == 0
    assert not node.home.path.exists()
