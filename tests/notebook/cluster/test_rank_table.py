"""What the notebook knows of its ranks."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest
from msgspec import structs

from nbcomm.launch.placement import NodeShare, assign_places
from nbcomm.node.processes.exit_status import how_it_ended
from nbcomm.notebook.cluster.rank_table import RankTable
from nbcomm.protocol import CollectiveState, Done, Failure, Hello, StatusReply
from nbcomm.rank_spec import ends_of
from nbcomm.world_dir import WorldDir


@pytest.fixture
def rank_table(tmp_path: Path) -> RankTable:
    made = RankTable(WorldDir(tmp_path).log_tail)
    for rank in range(3):
        made.greet(Hello(rank, 100 + rank, "host", 0, "2.13.0", attached=True))
    made.places = assign_places([NodeShare(3, cores=4)], "cpu", "gloo")
    return made


def test_the_rows_say_what_the_ranks_said(rank_table: RankTable) -> None:
    rank_table.note(1, StatusReply(1, 101, "running", 5.0, 3, 1000, 0, 0, pss=True))
    rows = rank_table.views()
    assert [(row.rank, row.pid, row.state) for row in rows] == [(0, 100, "idle"), (1, 101, "running"), (2, 102, "idle")]
    assert (rows[1].since, rows[1].memory, rows[1].pss) == (5.0, 1000, True)
    assert rank_table.title == "3 ranks on cpu"


def test_a_rank_whose_cell_has_ended_runs_it_no_more_until_it_says_otherwise(rank_table: RankTable) -> None:
    busy = StatusReply(1, 101, "running", 5.0, 3, 1000, 0, 0)
    rank_table.note(1, busy)
    rank_table.note_part(1, Done(3, failure=Failure("ValueError", "bad", "")))
    row = rank_table.views()[1]
    assert (row.state, row.memory) == ("failed", 1000)
    assert row.since > 5.0
    rank_table.forget_errors()
    assert rank_table.views()[1].state == "idle"
    rank_table.note(1, busy)
    assert rank_table.views()[1].state == "running"
    rank_table.note_part(1, Done(3))
    rank_table.note_death(1, -9)
    assert rank_table.views()[1].state == "dead"


def test_which_libraries_ranks_import_is_what_they_said_last_of_this_request(rank_table: RankTable) -> None:
    busy = StatusReply(1, 101, "running", 5.0, 3, 1000, 0, 0, importing="sympy")
    for rank, reply in enumerate([structs.replace(busy, importing=""), busy, structs.replace(busy, run=2)]):
        rank_table.note(rank, reply)
    assert rank_table.importing([0, 1, 2], 3) == {1: "sympy"}
    assert rank_table.importing([0, 2], 3) == {}
    rank_table.note_death(1, -9)
    assert rank_table.importing([0, 1, 2], 3) == {}


def test_a_rank_that_has_formed_its_groups_does_not_start_any_more(rank_table: RankTable) -> None:
    starts, runs = (StatusReply(rank, 100 + rank, "starting", 5.0, None, 1000, 0, 0) for rank in (1, 2)), "running"
    for reply in starts:
        rank_table.note(reply.rank, reply)
    rank_table.note(2, StatusReply(2, 102, runs, 5.0, 3, 1000, 0, 0))
    rank_table.note_formed([0, 1, 2])
    assert [view.state for view in rank_table.views()] == ["idle", "idle", "running"]
    rank_table.note(1, StatusReply(1, 101, runs, 5.0, 3, 1000, 0, 0))
    assert rank_table.views()[1].state == "running"


def test_a_report_that_an_answer_has_overtaken_says_nothing_any_more(rank_table: RankTable) -> None:
    before, after = CollectiveState({"all": 4}), CollectiveState({"all": 5})
    overtaken = StatusReply(1, 101, "running", 5.0, 3, 1000, 0, 0, 1, before, question=1, answered=2)
    rank_table.note(1, overtaken)
    rank_table.note_doing(1, 1, Done(3, doing=after))
    rank_table.note_part(1, Done(3))
    with rank_table.asking() as question:
        rank_table.note(1, structs.replace(overtaken, question=question.number))
        assert question.silent == {0, 2}, "it has answered the question all the same"
    assert rank_table.doing(1, 1) == after
    assert rank_table.views()[1].state == "idle"
    rank_table.note(1, structs.replace(overtaken, run=4, answered=3, doing=CollectiveState({"all": 6})))
    assert rank_table.doing(1, 1).issued == {"all": 6}
    assert rank_table.views()[1].state == "running"


@pytest.mark.parametrize("last", ["", "failed"])
def test_a_rank_that_has_answered_what_was_no_cell_does_not_run_it_any_more(rank_table: RankTable, last: str) -> None:
    """As long as it has not said what it does since then: it may take a while on a busy machine."""
    if last:
        rank_table.note_part(1, Done(3, failure=Failure("ValueError", "bad", ""), interrupted=last == "interrupted"))
    looks = StatusReply(1, 101, "running", 5.0, 3, 1000, 0, 0, 1)
    rank_table.note(1, looks)
    assert rank_table.views()[1].state == "running"
    rank_table.note_doing(1, 1, Done(3, doing=CollectiveState()))
    assert rank_table.views()[1].state == (last or "idle")
    rank_table.note(1, structs.replace(looks, run=4, answered=3))
    assert rank_table.views()[1].state == "running"
    rank_table.note(1, structs.replace(looks, run=-1, answered=4))
    assert rank_table.views()[1].state == "running", "what a page asks of a widget has no number"


def test_the_answers_to_another_process_of_a_rank_do_not_count(rank_table: RankTable) -> None:
    rank_table.note_doing(1, 1, Done(3, doing=CollectiveState({"all": 5})))
    rank_table.begin_again([1])
    rank_table.note(1, StatusReply(1, 101, "running", 5.0, 4, 1000, 0, 0, 1, CollectiveState({"all": 1})))
    assert rank_table.doing(1, 1).issued == {"all": 1}


def test_a_dead_rank_stays_dead(rank_table: RankTable) -> None:
    assert rank_table.note_death(2, -signal.SIGKILL).startswith("was killed by SIGKILL")
    rank_table.note(2, StatusReply(2, 102, "idle", 5.0, None, 1000, 0, 0))
    assert rank_table.views()[2].state == "dead"
    assert "killed by SIGKILL" in rank_table.views()[2].note
    assert rank_table.dead_among([0, 2]) == [2]


def test_a_rank_is_dead_since_its_death_and_has_no_figures(
    rank_table: RankTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter((100.0, 200.0, 300.0))
    monkeypatch.setattr("nbcomm.notebook.cluster.rank_table.time.time", lambda: next(clock))
    rank_table.note(2, StatusReply(2, 102, "idle", 5.0, None, 1000, 2000, 3000, pss=True))
    rank_table.note_death(2, -signal.SIGKILL)
    dead = rank_table.views()[2]
    assert (dead.state, dead.since, dead.note) == ("dead", 100.0, "was killed by SIGKILL")
    assert (dead.memory, dead.device_memory, dead.device_total, dead.pss) == (0, 0, 0, False)
    assert dead.pid == 102, "the system's log names it"
    rank_table.note_death(2, -signal.SIGKILL)  # it is told once more
    assert rank_table.views()[2].since == 100.0


def test_a_rank_that_another_notebook_has_seen_die_is_dead_since_nobody_knows_when(rank_table: RankTable) -> None:
    rank_table.note_death(1, None)  # as it is told by the node
    rank_table.note_death(1, None, at=0.0)
    assert (rank_table.views()[1].state, rank_table.views()[1].since) == ("dead", 0.0)


def test_a_rank_that_could_not_be_replaced_is_dead_since_its_first_death(
    rank_table: RankTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter((100.0, 200.0, 300.0))
    monkeypatch.setattr("nbcomm.notebook.cluster.rank_table.time.time", lambda: next(clock))
    rank_table.note_death(1, 3)
    how = rank_table.dead[1]
    rank_table.begin_again([1])
    starting = rank_table.views()[1]
    assert (starting.state, starting.since, starting.memory) == ("starting", 200.0, 0)
    rank_table.dead[1] = how  # as `Processes._replace` does
    assert (rank_table.views()[1].since, rank_table.views()[1].note) == (100.0, "ended with exit code 3")


@pytest.mark.parametrize("how", ["was stopped", "was left"])
def test_the_ranks_of_a_world_that_is_stopped_are_dead_since_then_and_have_no_figures(
    rank_table: RankTable, how: str
) -> None:
    rank_table.note(1, StatusReply(1, 101, "running", 5.0, 3, 1000, 0, 0))
    rank_table.note_death(2, 3, at=7.0)
    rows = rank_table.views((50.0, how))
    assert [(row.state, row.since, row.note, row.memory) for row in rows] == [
        ("dead", 50.0, how, 0),
        ("dead", 50.0, how, 0),
        ("dead", 7.0, "ended with exit code 3", 0),
    ]


def test_a_rank_that_was_stopped_for_another_has_not_failed(rank_table: RankTable) -> None:
    for rank, failure, culprits in (
        (0, Failure("HangError", "was cut off", ""), [1]),
        (1, Failure("ValueError", "bad", ""), []),
    ):
        rank_table.note(rank, StatusReply(rank, 100 + rank, "running", 5.0, 3, 1000, 0, 0))
        rank_table.note_part(rank, Done(3, failure=failure), culprits)
    views = rank_table.views()
    assert [(view.state, view.note) for view in views[:2]] == [
        ("interrupted", "was stopped because rank 1 failed"),
        ("failed", ""),
    ]
    rank_table.note(0, StatusReply(0, 100, "failed", 6.0, None, 1000, 0, 0))
    assert rank_table.views()[0].state == "interrupted", "the rank itself does not know"
    rank_table.forget_errors()
    assert (rank_table.views()[0].state, rank_table.views()[0].note) == ("idle", "")


def test_a_rank_that_has_said_nothing_yet_is_idle_since_it_is_there(
    rank_table: RankTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = rank_table.views()[0].since
    monkeypatch.setattr("nbcomm.notebook.cluster.rank_table.time.time", lambda: before + 60)
    assert (rank_table.views()[0].state, rank_table.views()[0].since) == ("idle", before)


def test_silence_ends_with_a_word_or_a_death(rank_table: RankTable) -> None:
    with rank_table.asking() as earlier, rank_table.asking() as question:
        assert question.ranks == [0, 1, 2]
        assert question.silent == {0, 1, 2}
        rank_table.note(0, StatusReply(0, 100, "idle", 5.0, None, 1000, 0, 0, question=question.number))
        rank_table.note(2, StatusReply(2, 102, "idle", 5.0, None, 1000, 0, 0, question=earlier.number))
        rank_table.note_death(1, 3)
        assert question.silent == {2}, "an answer to an earlier question tells nothing of now"
        assert earlier.silent == set()
        earlier.wait(60)  # nobody is waited for any more
    assert rank_table.question == question.number
    with rank_table.asking() as later:
        assert later.ranks == [0, 2]


def test_who_asks_is_woken_by_the_last_answer(rank_table: RankTable) -> None:
    with rank_table.asking() as question:

        def answer() -> None:
            for rank in range(3):
                rank_table.note(rank, StatusReply(rank, 100, "idle", 5.0, None, 0, 0, 0, question=question.number))

        thread = threading.Thread(target=answer)
        thread.start()
        question.wait(60)
        assert not question.silent
        thread.join()


def test_who_is_not_answered_waits_no_longer_than_it_said(rank_table: RankTable) -> None:
    with rank_table.asking() as question:
        question.wait(0.01)
        assert question.silent == {0, 1, 2}


@pytest.mark.parametrize(
    ("status", "words"),
    [(0, "ended with exit code 0"), (-11, "was killed by SIGSEGV"), (-63, "was killed by signal 63")],
)
def test_how_a_process_ended(status: int, words: str) -> None:
    assert how_it_ended(status) == words


KILLED, LEFT, UNKNOWN = how_it_ended(-signal.SIGKILL), how_it_ended(3), how_it_ended(None)


@pytest.mark.parametrize(
    ("causes", "words"),
    [
        ({1: KILLED}, "rank 1 was killed by SIGKILL"),
        ({1: KILLED, 3: LEFT}, "rank 1 was killed by SIGKILL and rank 3 ended with exit code 3"),
        ({0: LEFT, 1: KILLED, 2: KILLED}, "rank 0 ended with exit code 3 and ranks 1-2 were killed by SIGKILL"),
        ({0: KILLED, 1: LEFT, 2: "x", 3: LEFT}, f"rank 0 {KILLED}, ranks 1,3 {LEFT} and rank 2 x"),
        (
            {4: UNKNOWN, 5: UNKNOWN},
            "ranks 4-5 have ended (the cause is unknown, because its daemon was gone)",
        ),
    ],
)
def test_each_rank_is_told_of_with_its_own_end(causes: dict[int, str], words: str) -> None:
    assert ends_of(causes, causes) == words


def test_a_log_is_its_engines_and_what_it_printed_last(rank_table: RankTable, tmp_path: Path) -> None:
    assert rank_table.log(0) == "(nothing)"
    (tmp_path / "rank0.log").write_text("engine\n")
    (tmp_path / "rank0.stderr").write_text("terminate called\n")
    assert rank_table.log(0) == "engine\nterminate called"


def test_ranks_that_share_a_gpu_are_told_with_what_torch_has_there(rank_table: RankTable) -> None:
    rank_table.places = assign_places([NodeShare(3, cores=4, gpus=2)], "cuda", "gloo")
    rank_table.note(
        0,
        StatusReply(
            0,
            100,
            "idle",
            5.0,
            None,
            1,
            9 << 30,
            80 << 30,
            device_name="NVIDIA A100",
            allocated=1 << 30,
            reserved=(2 << 30) + 4096,
        ),
    )
    assert rank_table.views()[0].on_gpu == "torch 1.0 GiB, reserved 2.0 GiB · NVIDIA A100, shared with rank 2"
    assert rank_table.views()[1].on_gpu == ""


def test_what_a_death_did_is_told_by_the_notes_alone(rank_table: RankTable) -> None:
    rank_table.note(0, StatusReply(0, 100, "running", 5.0, 3, 1000, 0, 0))
    rank_table.note_death(1, 3, at=7.0)
    rank_table.note_part(1, Done(3, failure=Failure("RankDiedError", "Rank 1 ended", "")))
    rank_table.note_part(0, Done(3, failure=Failure("HangError", "was cut off", "")), [1])
    assert [(view.state, view.note, view.error) for view in rank_table.views()[:2]] == [
        ("interrupted", "was stopped because rank 1 died", ""),
        ("dead", "ended with exit code 3", ""),
    ]
