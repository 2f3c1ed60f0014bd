"""A notebook takes up a world whose ranks repeat what the notebook before may not have heard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nbcomm.launch.placement import NodeShare, assign_places
from nbcomm.notebook.cluster.rank_table import RankTable
from nbcomm.notebook.execution.reattach import Reattachment
from nbcomm.protocol import Done, Hello, Output, StatusReply, StatusRequest, Text
from nbcomm.world_dir import WorldDir


class Link:
    """Lets the ranks say what they do when they are asked."""

    def __init__(self, rank_table: RankTable, running: dict[int, int | None]) -> None:
        self.rank_table = rank_table
        self.running = running

    def send(self, ranks: list[int], message: Any) -> None:
        assert isinstance(message, StatusRequest)
        for rank in ranks:
            if rank in self.running:
                run = self.running[rank]
                state, number = "running" if run else "idle", message.question
                self.rank_table.note(rank, StatusReply(rank, 100, state, 0.0, run, 0, 0, 0, 4, question=number))


@pytest.fixture
def rank_table(tmp_path: Path) -> RankTable:
    made = RankTable(WorldDir(tmp_path).log_tail)
    for rank in range(3):
        made.greet(Hello(rank, 100 + rank, "host", 0, "2.13.0"))
    made.places = assign_places([NodeShare(3, cores=4)], "cpu", "gloo")
    return made


def said(rank: int, run: int, ranks: list[int]) -> Hello:
    """What a rank says that keeps messages about a cell."""
    return Hello(rank, 100 + rank, "host", 0, "2.13.0", attached=True, run=run, ranks=ranks)


def shown(text: str, run: int = 7) -> Output:
    return Output(run, [Text("stdout", text)])


def test_a_cell_that_runs_is_found_with_its_ranks_and_output(rank_table: RankTable) -> None:
    resumption, delivered = Reattachment(), []
    for rank in (0, 2):
        assert not resumption.take(rank, said(rank, 7, "0,2"), [])  # the rank table hears it, too
        assert resumption.take(rank, shown(f"from {rank}"), [])
    snapshots = resumption.await_ranks(rank_table, Link(rank_table, {0: 7, 1: None, 2: 7}))  # type: ignore[arg-type]
    assert [snapshot.rank for snapshot in snapshots] == [0, 1, 2]
    assert (resumption.run, resumption.ranks) == (7, [0, 2])
    resumption.hand_over(lambda rank, message, _: delivered.append((rank, message)))
    assert delivered == [(0, shown("from 0")), (2, shown("from 2"))]
    assert not resumption.take(0, shown("now"), [])  # from now on it goes where all goes


def test_a_cell_that_has_ended_unheard_is_found_too(rank_table: RankTable) -> None:
    resumption, answers = Reattachment(), []
    for rank in range(3):
        resumption.take(rank, said(rank, 7, "0-2"), [])
        assert not resumption.take(rank, Done(7), [])  # it counts at once
    resumption.await_ranks(rank_table, Link(rank_table, dict.fromkeys(range(3))))  # type: ignore[arg-type]
    assert resumption.run == 7
    resumption.repeat_answers(lambda rank, done: answers.append((rank, done.id)))
    assert answers == [(0, 7), (1, 7), (2, 7)]


def test_who_was_told_that_all_was_heard_repeats_nothing(rank_table: RankTable) -> None:
    resumption = Reattachment()
    resumption.take(0, said(0, 7, "0,1"), [])  # the word had not reached it
    resumption.await_ranks(rank_table, Link(rank_table, dict.fromkeys(range(3))))  # type: ignore[arg-type]
    assert resumption.run == 0


def test_an_idle_world_has_nothing_to_take_up(rank_table: RankTable) -> None:
    resumption = Reattachment()
    resumption.await_ranks(rank_table, Link(rank_table, dict.fromkeys(range(3))))  # type: ignore[arg-type]
    assert (resumption.run, resumption.ranks) == (0, [])


def test_the_latest_request_counts(rank_table: RankTable) -> None:
    resumption, delivered = Reattachment(), []
    resumption.take(0, said(0, 6, "0"), [])
    resumption.take(0, shown("old", 6), [])
    resumption.take(1, said(1, 7, "1"), [])
    resumption.take(1, shown("new"), [])
    resumption.await_ranks(rank_table, Link(rank_table, {0: None, 1: 7, 2: None}))  # type: ignore[arg-type]
    assert (resumption.run, resumption.ranks) == (7, [1])
    assert not resumption.take(0, shown("late", 6), [])
    resumption.hand_over(lambda rank, message, _: delivered.append((rank, message.run)))
    assert (1, 7) in delivered


def test_a_dead_rank_has_no_part_in_what_has_ended(rank_table: RankTable) -> None:
    resumption = Reattachment()
    rank_table.note_death(2, -9)
    for rank in (0, 1):
        resumption.take(rank, said(rank, 7, "0-2"), [])
    resumption.await_ranks(rank_table, Link(rank_table, {0: None, 1: None}))  # type: ignore[arg-type]
    assert resumption.ranks == [0, 1]


def test_a_rank_that_is_deaf_is_not_waited_for_for_ever(rank_table: RankTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nbcomm.notebook.execution.reattach._PATIENCE", 0.3)
    resumption = Reattachment()
    resumption.take(0, said(0, 7, "0-2"), [])
    snapshots = resumption.await_ranks(rank_table, Link(rank_table, {0: 7, 1: None}))  # type: ignore[arg-type]
    assert [snapshot.rank for snapshot in snapshots] == [0, 1]


def test_what_is_no_cells_matter_passes() -> None:
    assert not Reattachment().take(0, StatusReply(0, 1, "idle", 0.0, None, 0, 0, 0), [])
