"""What a command says before anything is run; no rank is asked."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from nbcomm.errors import RankDiedError
from nbcomm.launch.placement import NodeShare, assign_places
from nbcomm.notebook.cluster.rank_table import RankTable
from nbcomm.notebook.execution.dispatcher import Dispatcher
from nbcomm.notebook.session.commands import Commands
from nbcomm.protocol import Hello
from nbcomm.world_dir import WorldDir

SIGKILL = -signal.SIGKILL


@pytest.fixture
def rank_table(tmp_path: Path) -> RankTable:
    made = RankTable(WorldDir(tmp_path).log_tail)
    for rank in range(4):
        made.greet(Hello(rank, 100 + rank, "host", 0, "2.13.0"))
    made.places = assign_places([NodeShare(4, cores=4)], "cpu", "gloo")
    return made


@pytest.fixture
def commands(rank_table: RankTable, tmp_path: Path) -> Commands:
    nobody: Any = None
    made = Commands(WorldDir(tmp_path), nobody, rank_table, Dispatcher(nobody, rank_table), nobody, attached=False)
    made._stopped = False
    return made


@pytest.mark.parametrize(
    ("ends", "ranks", "says"),
    [
        ({1: SIGKILL}, None, "Rank 1 was killed by SIGKILL; nothing was run. Type %distributed heal to put a new "),
        ({1: SIGKILL, 3: 3}, None, "Rank 1 was killed by SIGKILL and rank 3 ended with exit code 3; nothing was run."),
        ({1: SIGKILL, 3: 3}, "2-3", "Rank 3 ended with exit code 3; nothing was run."),
        ({1: 3, 2: 3}, None, "Ranks 1-2 ended with exit code 3; nothing was run. Type %distributed heal to put new "),
    ],
)
def test_each_dead_rank_is_named_with_its_own_end(
    commands: Commands, rank_table: RankTable, ends: dict[int, int], ranks: str | None, says: str
) -> None:
    for rank, status in ends.items():
        rank_table.note_death(rank, status)
    with pytest.raises(RankDiedError) as raised:
        commands._choose(ranks)
    assert str(raised.value).startswith(says)


def test_of_those_that_die_together_none_is_advised_though_their_ends_are_told_one_by_one(
    commands: Commands, rank_table: RankTable
) -> None:
    rank_table.note_death(0, SIGKILL)
    commands._hear_ends = lambda: [rank_table.note_death(rank, SIGKILL) for rank in (1, 2, 3)]  # type: ignore[method-assign]
    with pytest.raises(RankDiedError, match=r"^Ranks 0-3 were killed by SIGKILL; nothing was run") as raised:
        commands._choose(None)
    assert "-r" not in str(raised.value)


def test_the_living_can_be_chosen(commands: Commands, rank_table: RankTable) -> None:
    rank_table.note_death(1, SIGKILL)
    assert commands._choose("!1") == [0, 2, 3]


@pytest.mark.parametrize(
    ("dead", "remedy", "end"),
    [
        ([1], "Type restart.", "nothing was run. Type restart. The other ranks can be chosen with -r."),
        ([0, 1, 2, 3], "Type restart.", "nothing was run. Type restart."),
        ([0, 1, 2, 3], "", "put new processes in their places, or %distributed restart for a new world."),
        ([1], "", "a new process in its place (the others keep their variables), or choose other ranks with -r."),
    ],
)
def test_only_what_can_be_done_is_advised(
    commands: Commands, rank_table: RankTable, dead: list[int], remedy: str, end: str
) -> None:
    rank_table._without_heal = lambda _: remedy
    for rank in dead:
        rank_table.note_death(rank, SIGKILL)
    with pytest.raises(RankDiedError) as raised:
        commands._choose(None)
    assert str(raised.value).endswith(end)
