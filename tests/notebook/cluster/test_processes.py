"""What a heal refuses because it cannot be done; what it does is in tests/world/test_healing.py."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nbcomm.errors import StateError
from nbcomm.launch.process_table import Process
from nbcomm.notebook.cluster.processes import Processes
from nbcomm.notebook.cluster.roster import Roster
from nbcomm.protocol import Exited
from nbcomm.protocol.nodes import key_of
from nbcomm.world_dir import WorldDir

QUEUE = "Nothing can be started there. Type %distributed restart to queue again."


class Node(SimpleNamespace):
    """A node, as far as a heal looks at it before it does anything."""

    name: str
    lost: str
    without_heal: str

    def __init__(self, number: int, host: str) -> None:
        name = f"node {number} ({host})"
        super().__init__(
            name=name, where=f" of {name}", lost="", how="was killed by SIGKILL", without_heal="", processes={}
        )


@pytest.fixture
def nodes(tmp_path: Path) -> Any:
    """A head without ranks, and two nodes with two ranks each."""
    head, a, b = Node(0, "head"), Node(0, "a"), Node(1, "b")
    of = {key_of(rank): node for rank, node in enumerate((a, a, b, b))}
    return SimpleNamespace(
        head=head,
        home=WorldDir(tmp_path),
        a=a,
        b=b,
        gone=[],
        job=None,
        unwatched={},
        of=lambda key: of.get(key, head),
        report_to=lambda *_: None,
    )


@pytest.fixture
def roster(nodes: Any, tmp_path: Path) -> Roster:
    return Roster(WorldDir(tmp_path).log_tail, lambda key: nodes.of(key).without_heal if nodes.gone else "")


@pytest.fixture
def processes(nodes: Any, roster: Roster) -> Processes:
    return Processes(nodes, roster, lambda *_: None, lambda: None)


def lose(node: Node, why: str, nodes: Any) -> None:
    node.lost, node.without_heal = why, QUEUE
    nodes.gone.append(node)


def test_what_the_scheduler_has_taken_back_is_not_tried_again(processes: Processes, nodes: Any, roster: Roster) -> None:
    assert not processes.without_heal
    for rank in range(4):
        roster.note_death(rank, None)
    for node in (nodes.a, nodes.b):
        lose(node, "was taken back: Slurm job 1 was cancelled", nodes)
    with pytest.raises(StateError) as refused:
        processes.heal([0, 1, 2, 3], lambda: False)
    assert str(refused.value) == (
        f"Nothing was replaced: node 0 (a) and node 1 (b) were taken back: Slurm job 1 was cancelled. {QUEUE}"
    )
    assert processes.without_heal
    assert all("heal" not in trouble for trouble in processes.troubles)


def test_ranks_beside_those_that_cannot_be_replaced_are_named(processes: Processes, nodes: Any, roster: Roster) -> None:
    for rank in (1, 2, 3):
        roster.note_death(rank, -9)
    lose(nodes.b, "does not answer", nodes)
    with pytest.raises(StateError) as refused:
        processes.heal([1, 2, 3], lambda: False)
    assert str(refused.value) == (
        f"Nothing was replaced: node 1 (b) does not answer. {QUEUE} Type %distributed heal 1 to replace rank 1."
    )


def test_a_fork_server_that_nobody_can_start_is_told_with_its_end(processes: Processes, nodes: Any) -> None:
    nodes.b.without_heal = QUEUE
    nodes.gone.append(nodes.b)
    with pytest.raises(StateError, match=r"replaced: the fork server of node 1 \(b\) was killed by SIGKILL\. Nothing"):
        processes.heal([], lambda: False)
    (trouble,) = processes.troubles
    assert trouble.endswith(f"only dead ranks cannot be replaced. {QUEUE}")


def test_an_end_whose_notice_was_missed_is_noted_by_comparison(nodes: Any, roster: Roster) -> None:
    told: list[int] = []
    processes = Processes(nodes, roster, lambda rank, *_: told.append(rank), lambda: None)
    ended = Exited(4, key_of(1), 11, -9)
    nodes.processes = {key_of(0): Process(3, 10), key_of(1): Process(4, 11, ended)}
    nodes.wait_for_ends = lambda _: None
    processes.compare()
    assert told == [], "it may be under way, on the link's thread"
    processes.compare()
    assert told == [1]
    assert roster.dead == {1: "was killed by SIGKILL"}
    roster.begin_again([1])  # a heal: its successor has not started yet
    processes.compare()
    processes.compare()
    assert told == [1]
    assert roster.dead == {}


def test_who_asks_for_the_dead_hears_of_each_end_that_is_known(nodes: Any, roster: Roster) -> None:
    def failing(rank: int, _how: str, _unsaid: object) -> None:
        failed.append(rank)
        if len(failed) == 1:
            raise TypeError("spoiled")

    failed: list[int] = []
    processes = Processes(nodes, roster, failing, lambda: None)
    nodes.processes = {key_of(1): Process(4, 11, Exited(4, key_of(1), 11, -9))}
    nodes.wait_for_ends = lambda _: None
    with pytest.raises(TypeError):
        processes._ended(nodes.processes[key_of(1)].exited)
    assert processes.dead() == [1]
    assert failed == [1, 1], "the first was told in vain"
