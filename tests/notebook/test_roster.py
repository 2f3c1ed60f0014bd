"""What the notebook knows of its ranks."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from nbcomm.home import Home
from nbcomm.launch.ends import how_it_ended
from nbcomm.launch.layout import assign_places
from nbcomm.messages import Hello, Snapshot
from nbcomm.notebook.roster import Roster


@pytest.fixture
def roster(tmp_path: Path) -> Roster:
    made = Roster(Home(tmp_path))
    for rank in range(3):
        made.greet(Hello(rank, 100 + rank, "host", 0, "2.13.0"))
        made.attach(rank)
    made.places = assign_places(made.hellos.values(), "cpu", "gloo", 0)
    return made


def test_the_rows_say_what_the_ranks_said(roster: Roster) -> None:
    roster.note(1, Snapshot(1, 101, "running", 5.0, 3, 1000, 0, 0))
    rows = roster.views()
    assert [(row.rank, row.pid, row.state) for row in rows] == [(0, 100, "idle"), (1, 101, "running"), (2, 102, "idle")]
    assert (rows[1].since, rows[1].memory) == (5.0, 1000)
    assert roster.title == "3 ranks on cpu"


def test_a_dead_rank_stays_dead(roster: Roster) -> None:
    assert roster.note_death(2, -signal.SIGKILL).startswith("was killed by SIGKILL")
    roster.note(2, Snapshot(2, 102, "idle", 5.0, None, 1000, 0, 0))
    assert roster.views()[2].state == "dead"
    assert "killed by SIGKILL" in roster.views()[2].note
    assert roster.dead_among([0, 2]) == [2]


def test_silence_ends_with_a_word_or_a_death(roster: Roster) -> None:
    earlier, question = roster.next_question(), roster.next_question()
    assert roster.silent(question) == {0, 1, 2}
    roster.note(0, Snapshot(0, 100, "idle", 5.0, None, 1000, 0, 0, question=question))
    roster.note(2, Snapshot(2, 102, "idle", 5.0, None, 1000, 0, 0, question=earlier))
    roster.note_death(1, 3)
    assert roster.silent(question) == {2}, "an answer to an earlier question tells nothing of now"
    assert roster.silent(earlier) == set()


@pytest.mark.parametrize(
    ("status", "words"),
    [(0, "ended with exit code 0"), (-11, "was killed by SIGSEGV"), (-63, "was killed by signal 63")],
)
def test_how_a_process_ended(status: int, words: str) -> None:
    assert how_it_ended(status) == words


def test_a_log_is_its_engines_and_what_it_printed_last(roster: Roster, tmp_path: Path) -> None:
    assert roster.log(0) == "(nothing)"
    (tmp_path / "rank0.log").write_text("engine\n")
    (tmp_path / "rank0.stderr").write_text("terminate called\n")
    assert roster.log(0) == "engine\nterminate called"
