"""Several nodes under one notebook, with real daemons, whose ranks only wait."""

from __future__ import annotations

import importlib
import os
import queue
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from nbcomm.board_pages import page_of
from nbcomm.errors import StartError, StateError
from nbcomm.launch.head import Head
from nbcomm.launch.launchers.slurm import Job
from nbcomm.launch.node_client import NodeClient
from nbcomm.launch.nodes import Nodes
from nbcomm.launch.orders import ANSWER
from nbcomm.node.peers import listener_at
from nbcomm.protocol import Exited, NodeFacts
from nbcomm.protocol.nodes import key_of
from nbcomm.world_dir import WorldDir
from nbcomm.world_info import JobInfo, Launcher

from ..node.served import PATIENCE, await_that, has_ended, quickly
from ..node.test_store import Client


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Nodes]:
    """Two nodes with two ranks each, of which none is started yet."""
    quickly(monkeypatch, tmp_path)
    head = Head(WorldDir.create())
    made = Nodes(head)
    try:
        head.wait_ready(PATIENCE)
        made.add_here([2, 2], time.monotonic() + PATIENCE)
        yield made
    finally:
        made.shutdown()


def start(nodes: Nodes, rank: int, *argv: str) -> psutil.Process:
    process = nodes.of(key_of(rank)).start(key_of(rank), "engine", list(argv), environment={"ODD": "one"})
    return psutil.Process(process.pid)


def other_of(nodes: Nodes) -> NodeClient:
    return list(nodes)[1]


def program_of(node: NodeClient) -> psutil.Process:
    """What the notebook itself has started for a node."""
    server = node._server
    started = server._process if node.number == 0 else server._program._process
    return psutil.Process(started.pid)


def home_of(node: NodeClient) -> WorldDir:
    assert node.told is not None
    return WorldDir(node.told.home)


def test_each_rank_is_started_on_its_node(nodes: Nodes) -> None:
    ranks = [start(nodes, rank) for rank in range(4)]
    other = other_of(nodes)
    assert [nodes.of(key_of(rank)).number for rank in range(4)] == [0, 0, 1, 1]
    assert set(nodes.processes) == {key_of(rank) for rank in range(4)}
    daemons = [listener_at(home.daemon_socket) for home in (nodes.home, home_of(other))]
    parents = [daemons[0]] * 2 + [daemons[1]] * 2
    await_that(lambda: [rank.ppid() for rank in ranks] == parents, "a rank is not its daemon's child")  # so it soon is
    assert home_of(other).path != nodes.home.path
    await_that(home_of(other).log(2).exists, "the rank has no log there")  # it makes it itself, after its start
    assert not nodes.home.log(2).exists()
    assert nodes.of("controller") is nodes.head


def test_a_rank_elsewhere_has_the_nodes_environment_and_what_the_notebook_has_set(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = dict(os.environ)  # what the system tells is written over by those who run tests in several processes
    monkeypatch.setattr("nbcomm.launch.launchers.joined._at_first", lambda: began)
    monkeypatch.setenv("ODD_NEW", "from the notebook")
    other_of(nodes).start(key_of(2), "engine", ["--tell"], environment={"ODD": "one"})
    log = home_of(other_of(nodes)).log(2)
    await_that(lambda: "ODD_NEW" in (log.read_text() if log.exists() else ""), "it tells nothing")
    assert "b'ODD': b'one'" in log.read_text()
    assert "b'ODD_NEW': b'from the notebook'" in log.read_text()
    assert "ODD_NEW" in nodes.log_tail(key_of(2))


def test_a_death_on_any_node_is_told(nodes: Nodes) -> None:
    told: queue.Queue[Exited] = queue.Queue()
    nodes.report_to(told.put)
    for rank in (1, 2):
        start(nodes, rank).kill()
        ended = told.get(timeout=PATIENCE)
        assert (ended.key, ended.status) == (key_of(rank), -signal.SIGKILL)


def test_a_node_that_is_told_to_end_tells_so_and_takes_its_ranks_with_it(nodes: Nodes) -> None:
    told: queue.Queue[Exited] = queue.Queue()
    for rank in range(4):
        start(nodes, rank)
    nodes.report_to(told.put)
    program_of(other_of(nodes)).terminate()
    ended = [told.get(timeout=PATIENCE) for _ in range(2)]
    assert {(one.key, one.why) for one in ended} == {
        (f"rank {rank}", "was lost with node 1, which was told to end") for rank in (2, 3)
    }
    await_that(lambda: nodes.gone == [other_of(nodes)], "the node counts as there")


def test_nodes_that_were_taken_back_lose_their_ranks_and_need_no_end(nodes: Nodes) -> None:
    told: queue.Queue[Exited] = queue.Queue()
    for rank in range(4):
        start(nodes, rank)
    nodes.report_to(told.put)
    nodes.job = Job(JobInfo("12", ours=False))
    nodes.job.over = "Slurm job 12 was cancelled"
    nodes.lose_joined()
    lost = [told.get(timeout=PATIENCE) for _ in range(2)]
    assert {ended.key for ended in lost} == {"rank 2", "rank 3"}
    assert {ended.why for ended in lost} == {"was lost with node 1, which was taken back: Slurm job 12 was cancelled"}
    assert nodes.gone == [other_of(nodes)]
    nodes.lose_joined()
    assert told.empty(), "each end is told once"
    other_of(nodes).lost = ""  # in truth they live, and end with this test


def test_who_joins_later_is_heard_by_those_who_wanted_to_know_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    quickly(monkeypatch, tmp_path)
    head, told = Head(WorldDir.create()), queue.Queue[Exited]()
    nodes = Nodes(head)
    nodes.report_to(told.put)
    try:
        head.wait_ready(PATIENCE)
        nodes.add_here([0, 1], time.monotonic() + PATIENCE)
        start(nodes, 0).kill()
        assert told.get(timeout=PATIENCE).key == "rank 0"
    finally:
        nodes.shutdown()


def test_all_nodes_serve_one_generation_after_the_other(nodes: Nodes) -> None:
    rendezvous, other = nodes.rendezvous, other_of(nodes)
    for generation in (1, 2):
        rendezvous.serve(generation)
        assert rendezvous.generation == generation == other.served.generation
        assert Client(nodes.home.store_socket(generation)).ask("add", "n", 1) == 1
        assert not home_of(other).store_socket(generation).exists()
        assert [page_of(nodes.home.board, rank).exists() for rank in range(4)] == [False, False, True, True]
        assert [page_of(home_of(other).board, rank).exists() for rank in range(4)] == [True, True, False, False]
    assert [listener.node for listener in rendezvous.listeners()] == [0, 1]


@pytest.mark.parametrize("which", [0, 1])
def test_the_next_daemon_serves_the_groups_where_the_last_one_did(nodes: Nodes, which: int) -> None:
    ranks, node = [start(nodes, rank) for rank in range(4)], list(nodes)[which]
    nodes.report_to(lambda _: None, lambda: nodes.rendezvous.serve_again(1) or pytest.fail("it cannot"))
    nodes.rendezvous.serve(1)
    before = nodes.rendezvous.listeners()
    psutil.Process(ranks[2 * which].ppid()).kill()

    def is_back() -> bool:
        nodes.look()
        return node.daemons > 1 and node.served.generation == 1

    await_that(is_back, "no other one serves")
    assert nodes.rendezvous.listeners() == before
    assert node.served.address == before[which].address


def test_the_end_of_the_world_is_one_on_each_node(nodes: Nodes) -> None:
    programs = [program_of(node) for node in nodes]
    ranks, home = [start(nodes, rank) for rank in range(4)], home_of(other_of(nodes))
    assert len({program.pid for program in programs}) == 2, "one program a node"
    assert not any(has_ended(process) for process in (*programs, *ranks))
    nodes.shutdown()
    assert all(has_ended(process) for process in (*programs, *ranks))
    assert not home.path.exists()
    assert not nodes.home.path.exists()


@pytest.mark.parametrize(
    "step",
    [
        "NodeClient.leave",
        "NodeClient.end",
        "NodeClient._is_told_to_end",
        "NodeClient.close",
        "launchers.tunnel.Tunnels.close",
        "link.Link.close",
        "nodes.Nodes._forget_programs",
    ],
)
def test_a_fault_in_one_step_of_the_end_leaves_no_process(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    programs = [program_of(node) for node in nodes]
    ranks = [start(nodes, rank) for rank in range(4)]
    *path, kind, method = ("node_client." * step.startswith("Node") + step).split(".")
    its = getattr(importlib.import_module(".".join(["nbcomm.launch", *path])), kind)
    plain = getattr(its, method)

    def fail_first(*args: Any, **_: Any) -> Any:
        monkeypatch.setattr(its, method, plain)
        if method == "end":  # the thread of one node fails when all is done
            plain(*args)
        raise OSError("on purpose")

    monkeypatch.setattr(its, method, fail_first)
    with suppress(OSError):
        nodes.shutdown()
    assert getattr(its, method) is plain, "it did not come to that"
    # A fence kills, and does not wait until the kernel has cleared away what it has killed.
    await_that(lambda: all(has_ended(process) for process in (*programs, *ranks)), "some are left")
    assert not nodes.home.path.exists()


def test_a_node_whose_daemon_was_killed_gets_another_one_that_takes_over_its_ranks(nodes: Nodes) -> None:
    ranks, other = [start(nodes, rank) for rank in range(4)], other_of(nodes)
    psutil.Process(ranks[2].ppid()).kill()

    def is_back() -> bool:
        nodes.look()
        return other.daemons > 1 and other.claimed

    await_that(is_back, "no other one comes")
    assert nodes.gone == []
    assert [rank.is_running() for rank in ranks] == [True] * 4
    start(nodes, 2, "--again")


def test_another_notebook_takes_up_all_nodes_and_ends_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quickly(monkeypatch, tmp_path)
    first = Nodes(Head(WorldDir.create()))
    first.head.wait_ready(PATIENCE)
    first.add_here([2, 2], time.monotonic() + PATIENCE)
    first.set_lease(PATIENCE)
    ranks = [start(first, rank) for rank in range(4)]
    joined, home = first.joined(), home_of(other_of(first))
    assert [info.ranks for info in joined] == [[2, 3]]
    first.release()
    second, told = Nodes(Head(WorldDir(first.home.path), running=True)), queue.Queue[Exited]()
    second.report_to(told.put)
    second.take_up(joined, 4)
    second.wait_claimed(PATIENCE)
    second.learn()
    assert {key: process.pid for key, process in second.processes.items()} == {
        key_of(rank): process.pid for rank, process in enumerate(ranks)
    }
    second.rendezvous.serve(1)
    assert second.rendezvous.generation == 1
    ranks[3].kill()
    assert told.get(timeout=PATIENCE).key == "rank 3"
    assert start(second, 3).is_running()
    began = time.monotonic()
    second.shutdown()
    assert time.monotonic() - began < PATIENCE
    assert "could not be ended" not in capsys.readouterr().err
    assert not home.path.exists()
    assert not first.home.path.exists()
    assert all(has_ended(rank) for rank in ranks)


def test_where_nothing_can_listen_the_next_notebook_says_so_and_the_world_lives(nodes: Nodes) -> None:
    joined = nodes.joined()
    address, _, port = joined[0].link.address.removeprefix("tcp://").rpartition(":")
    with pytest.raises(StateError, match=rf"look for the notebook at tcp://{address}:{port}, and nothing can listen"):
        nodes.take_up(joined, 4)  # it is in use: by this very notebook
    assert start(nodes, 2).is_running()


def test_a_node_without_a_notebook_ends_after_its_lease(nodes: Nodes) -> None:
    ranks, home = [start(nodes, rank) for rank in range(4)], home_of(other_of(nodes))
    nodes.set_lease(0.2)
    nodes.wait_for_ends(PATIENCE)  # behind the lease
    nodes.release()
    for rank in ranks:
        await_that(lambda rank=rank: has_ended(rank), "it lives on")
    await_that(lambda: not home.path.exists(), "its directory is left")


# ── nodes that do not join ──────────────────────────────────────────────────────────────────────────


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Nodes]:
    """A head to which the test lets others join."""
    quickly(monkeypatch, tmp_path)
    made = Nodes(Head(WorldDir.create()))
    try:
        made.head.wait_ready(PATIENCE)
        made.listen("127.0.0.1")
        yield made
    finally:
        made.shutdown()


def joining(nodes: Nodes, launcher: Launcher) -> NodeClient:
    """The first node beside the head, for which nobody waits."""
    return nodes._let_join([nodes._invite(launcher, 1, 1)], None)[0]


def test_a_node_that_cannot_join_is_told_with_what_it_said(alone: Nodes) -> None:
    node = joining(alone, Launcher("python", "host", ["sh", "-c", "echo no such module >&2; exit 3"]))
    with pytest.raises(StartError, match=r" of node 1 \(host\) ended\. Its log ends:\nno such module$"):
        node.wait_ready(PATIENCE)


def test_what_cannot_be_ended_where_nothing_has_joined_is_no_news(
    alone: Nodes, capsys: pytest.CaptureFixture[str]
) -> None:
    script = "[ $2 = nbcomm.node ] && exec sleep 600; echo no such host >&2; exit 3"
    node = joining(alone, Launcher("python", "host", ["sh", "-c", script]))
    node.end(PATIENCE)
    assert capsys.readouterr().err == ""
    node.daemons = 1
    node._fence()
    said = capsys.readouterr().err
    assert said.startswith(
        "nbcomm: Node 1 (host) did not say whether all of its processes have ended; those that still "
    )
    assert said.endswith("The reason: sh ended with exit code 3\nno such host.\n")


def test_what_a_prologue_has_said_is_told_as_its_failure(alone: Nodes) -> None:
    node = joining(alone, Launcher("python", "host", ["env"], prologue="echo no module x; exit 3"))
    with pytest.raises(StartError) as failed:
        node.wait_ready(PATIENCE)
    assert " of node 1 (host) ended: the prologue has failed with exit code 3 on " in str(failed.value)
    assert str(failed.value).endswith(". Its log ends:\nno module x")


def test_who_waits_for_a_lost_node_hears_at_once_what_has_happened_to_it(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = other_of(nodes)
    monkeypatch.setattr(other._orders, "_send", lambda _: None)  # it lives, and could answer first
    other.lost = "was taken back: Slurm job 12 was cancelled"
    began = time.monotonic()
    with pytest.raises(
        StateError, match=r"store: it was taken back: Slurm job 12 was cancelled\. Type %distributed heal"
    ):
        other.served.serve(other.served.order(1))
    assert time.monotonic() - began < ANSWER
    nodes.job = Job(JobInfo("12", ours=True))
    nodes.job.over = "Slurm job 12 was cancelled"
    with pytest.raises(StateError, match="Type %distributed restart to queue again"):
        other.served.serve(other.served.order(1))
    other.lost = ""  # it ends with this test


def test_a_node_of_another_version_is_refused(alone: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = NodeClient.facts

    def odd(self: NodeClient) -> NodeFacts:
        told = plain(self)
        return told if self is alone.head else NodeFacts(1, 1, 1, "b", told.home, "", {"Python": "3.9.1"})

    monkeypatch.setattr(NodeClient, "facts", odd)
    with pytest.raises(StartError) as refused:
        alone.add_here([1, 1], time.monotonic() + PATIENCE)
    assert "Node 1 (b) has Python 3.9.1, nbcomm none, and this machine has Python " in str(refused.value)


def test_a_node_that_is_still_importing_is_ended_with_the_world(alone: Nodes, tmp_path: Path) -> None:
    (tmp_path / "stubs" / "quick_engine.py").write_text("import time; time.sleep(600)")
    node = joining(alone, Launcher(sys.executable))
    home = WorldDir.named(f"{alone.home.id}-node1")
    await_that(lambda: node.daemons == 1, "its daemon does not come")
    alone.shutdown()
    assert not home.path.exists()
