"""Each step of the agent fails once: it goes on, and loses no more than the table of boundaries says."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nbcomm.protocol import Exited, ForkServerEnded, LogTail, NodeHello, Obeyed, Pull, ReadLog
from nbcomm.protocol.framing import OTHER

from ...world import lies
from ..ranks import PATIENCE, FakeRank
from ..served import await_that
from .test_node_agent import Node, Notebook

_LIE = (
    "nbcomm.node.agent.node_agent",
    """
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

def lie(module):
    for name in ("_deliver", "_hear_fork_server", "_learn", "_stand_in", "_attend", "_pass_on", "_obey"):
        stumbling(module.NodeAgent, name)
    for name in ("looks_up", "receive"):
        stumbling(module.NotebookEnd, name)
    import zmq
    for name in ("get_monitor_socket", "connect"):
        failing(zmq.Socket, name)
    stumbling(module.RankEnds, "accept")
    stumbling(module.unsaid, "read")
""",
)


@pytest.fixture
def stumbles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder in which a file lets the step with its name fail once."""
    folder = tmp_path / "stumbles"
    folder.mkdir()
    for name, value in lies.told(tmp_path / "lies", _LIE).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("STUMBLES", str(folder))
    return folder


@pytest.fixture
def node(stumbles: Path) -> Iterator[Node]:
    made = Node()
    yield made
    made.close()


def _letter_to_a_rank(node: Node, rank: FakeRank) -> None:
    node.notebook.link.send([rank.rank], Pull(1, ["x"]))
    node.notebook.link.send([rank.rank], Pull(2, ["x"]))  # shows the rank that it lacks the first, if that was lost


def _order(node: Node, _: FakeRank) -> None:
    node.notebook.link.order(ReadLog(5, "rank 0", 1))


def _report(node: Node, _: FakeRank) -> None:
    node.tell(Obeyed(77))


def _letter_of_a_rank(_: Node, rank: FakeRank) -> None:
    rank.wire.send([b"header", b"body"], OTHER)


def _visit(node: Node, _: FakeRank) -> None:
    node.status()


def _another_notebook(node: Node, _: FakeRank) -> None:
    node.notebook.link.close()
    node.notebook = Notebook(node.home)
    node.notebook.reported(NodeHello)


def _end_of_the_fork_server(node: Node, _: FakeRank) -> None:
    node.forkserver.framed.close()
    node.notebook.reported(ForkServerEnded)


_REPEATED = {_order, _report, _letter_of_a_rank}
"""What is done until the step has failed: the agent may still read in one that began before it was to fail."""


@pytest.mark.parametrize(
    ("step", "action"),
    [
        ("looks_up", _another_notebook),
        ("receive", _order),
        ("_deliver", _letter_to_a_rank),
        ("_obey", _order),
        ("_hear_fork_server", _report),
        ("_learn", _report),
        ("_attend", _letter_of_a_rank),
        ("accept", _visit),
        ("_stand_in", _end_of_the_fork_server),
        ("_pass_on", _letter_of_a_rank),
    ],
    ids=lambda it: it if isinstance(it, str) else "",
)
def test_a_step_that_fails_is_tried_again_or_costs_one_message(
    node: Node, stumbles: Path, step: str, action: Callable[[Node, FakeRank], None]
) -> None:
    rank = node.rank(0)
    (stumbles / step).touch()
    action(node, rank)

    def done() -> bool:
        if action in _REPEATED:
            action(node, rank)
        return not (stumbles / step).exists()

    await_that(done, "the step was not done")
    # The order may have been lost with the step; one that is given to it now is obeyed.
    for number in range(10):
        node.notebook.link.order(ReadLog(100 + number, "rank 0", 1))
        try:
            while not isinstance(node.notebook.events.get(timeout=PATIENCE / 10), LogTail):
                pass
            break
        except queue.Empty:
            continue
    else:
        pytest.fail("it obeys no more")
    assert rank.wire.framed.socket.fileno() >= 0
    assert node.process.is_running()


@pytest.mark.parametrize("step", ["get_monitor_socket", "connect"])
def test_a_link_that_cannot_be_opened_again_is_tried_again(node: Node, stumbles: Path, step: str) -> None:
    before = node.process.num_fds()
    (stumbles / step).touch()
    node.notebook.link.close()
    await_that(lambda: len((stumbles / step).read_text()) > 2, "it is not tried again")
    (stumbles / step).unlink()
    node.notebook = Notebook(node.home)
    assert node.notebook.reported(NodeHello) == NodeHello(7, 0)
    await_that(lambda: node.process.num_fds() == before, "it keeps something of the failed try open")
    node.notebook.link.order(ReadLog(5, "rank 0", 1))
    node.notebook.reported(LogTail)


def test_a_report_that_the_agent_does_not_understand_is_passed_on(node: Node, stumbles: Path) -> None:
    (stumbles / "_learn").touch()
    node.tell(Obeyed(77))
    assert node.notebook.reported(Obeyed) == Obeyed(77)
    await_that(lambda: not (stumbles / "_learn").exists(), "the step was not done")  # it comes after the report


def test_an_end_is_told_also_where_it_cannot_be_read_what_the_rank_had_not_said(node: Node, stumbles: Path) -> None:
    ended = Exited(0, "rank 0", node.rank(0).pid, 1)
    (stumbles / "read").touch()
    node.tell(ended)
    assert node.notebook.reported(Exited) == ended
    assert not (stumbles / "read").exists()


def test_a_letter_that_is_lost_in_the_agent_is_sent_again(node: Node, stumbles: Path) -> None:
    rank = node.rank(0)
    (stumbles / "_deliver").touch()
    node.notebook.link.send([0], Pull(1, ["x"]))
    await_that(lambda: not (stumbles / "_deliver").exists(), "the step was not done")
    node.notebook.link.send([0], Pull(2, ["x"]))
    assert [rank.hear()[0], rank.hear()[0]] == [Pull(1, ["x"]), Pull(2, ["x"])]
