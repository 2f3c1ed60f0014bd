"""What a heal refuses because it cannot be done; what it does is in tests/world/test_healing.py."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nbcomm.errors import StateError
from nbcomm.notebook.cluster.processes import Processes
from nbcomm.notebook.cluster.rank_table import RankTable
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
        of=lambda key: of.get(key, head),
        report_to=lambda *_: None,
    )


@pytest.fixture
def rank_table(nodes: Any, tmp_path: Path) -> RankTable:
    return RankTable(WorldDir(tmp_path).log_tail, lambda key: nodes.of(key).without_heal if nodes.gone else "")


@pytest.fixture
def processes(nodes: Any, rank_table: RankTable) -> Processes:
    return Processes(nodes, rank_table, lambda *_: None, lambda: None)


def lose(node: Node, why: str, nodes: Any) -> None:
    node.lost, node.without_heal = why, QUEUE
    nodes.gone.append(node)


def test_what_the_scheduler_has_taken_back_is_not_tried_again(
    processes: Processes, nodes: Any, rank_table: RankTable
) -> None:
    assert not processes.without_heal
    for rank in range(4):
        rank_table.note_death(rank, None)
    for node in (nodes.a, nodes.b):
        lose(node, "was taken back: Slurm job 1 was cancelled", nodes)
    with pytest.raises(StateError) as refused:
        processes.heal([0, 1, 2, 3], lambda: False)
    assert str(refused.value) == (
        f"Nothing was replaced: node 0 (a) and node 1 (b) were taken back: Slurm job 1 was cancelled. {QUEUE}"
    )
    assert processes.without_heal
    assert all("heal" not in trouble for trouble in processes.troubles)


def test_ranks_beside_those_that_cannot_be_replaced_are_named(
    processes: Processes, nodes: Any, rank_table: RankTable
) -> None:
    for rank in (1, 2, 3):
        rank_table.note_death(rank, -9)
    lose(nodes.b, "does not answer", nodes)
    with pytest.raises(StateError) as refused:
        processes.heal([1, 2, 3], lambda: False)
    assert str(refused.value) == (
        f"Nothing was replaced: node 1 (b) does not answer. {QUEUE} Type %distributed heal 1 to replace rank 1."
    )


def test_a_daemon_that_nobody_can_start_is_told_with_its_end(processes: Processes, nodes: Any) -> None:
    nodes.b.without_heal = QUEUE
    nodes.gone.append(nodes.b)
    with pytest.raises(StateError, match=r"replaced: the daemon of node 1 \(b\) was killed by SIGKILL\. Nothing"):
        processes.heal([], lambda: False)
    (trouble,) = processes.troubles
    assert trouble.endswith(f"only dead ranks cannot be replaced. {QUEUE}")
