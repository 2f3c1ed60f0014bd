"""Who died while the world started is named, each rank with its own end; the ranks are played here."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from nbcomm.errors import StartError
from nbcomm.notebook.cluster import readiness
from nbcomm.notebook.cluster.rank_table import RankTable
from nbcomm.notebook.cluster.readiness import await_ranks, refuse_dead
from nbcomm.world_dir import WorldDir


@pytest.fixture
def rank_table(tmp_path: Path) -> RankTable:
    """Four ranks that have told nothing yet, each with a log."""
    for rank in range(4):
        (tmp_path / f"rank{rank}.log").write_text(f"words of {rank}\n")
    return RankTable(WorldDir(tmp_path).log_tail)


def refused(rank_table: RankTable, ranks: range = range(4)) -> str:
    with pytest.raises(StartError) as error:
        refuse_dead(rank_table, ranks)
    return str(error.value)


def test_who_lives_is_not_refused(rank_table: RankTable) -> None:
    refuse_dead(rank_table, range(4))
    rank_table.note_death(3, 1)
    refuse_dead(rank_table, range(3))


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ({1: 3}, "Rank 1 ended with exit code 3 while it started. Its log ends:\nwords of 1"),
        (
            {0: 3, 2: 3, 3: 3},
            "Ranks 0,2-3 ended with exit code 3 while they started. The log of rank 0 ends:\nwords of 0",
        ),
        (
            {1: -9, 2: 3, 3: -9},
            (
                "Ranks 1,3 were killed by SIGKILL and rank 2 ended with exit code 3 while they started. "
                "The log of rank 1 ends:\nwords of 1\nThe log of rank 2 ends:\nwords of 2"
            ),
        ),
    ],
    ids=["one", "alike", "differently"],
)
def test_each_that_died_is_named_with_its_own_end(
    rank_table: RankTable, monkeypatch: pytest.MonkeyPatch, ends: dict[int, int], told: str
) -> None:
    monkeypatch.setattr(readiness, "_MOMENT", 0.01)
    for rank, status in ends.items():
        rank_table.note_death(rank, status)
    assert refused(rank_table) == told


def test_of_ranks_that_died_together_it_is_waited_until_all_are_told_of(
    rank_table: RankTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "_MOMENT", 60.0)  # where all are dead, it is not waited any longer
    deaths = iter([(2, 3), (0, -9), (1, 3), (3, 3)])
    monkeypatch.setattr(rank_table, "wait", lambda _: rank_table.note_death(*next(deaths)))
    with pytest.raises(StartError, match=r"^Rank 0 was killed by SIGKILL and ranks 1-3 ended with exit code 3 while"):
        await_ranks(rank_table, range(4), time.monotonic() + 60, "60 s")
