"""The charts of a cell's record."""

from __future__ import annotations

from nbcomm.charts.bars import Bars, Schedule
from nbcomm.charts.from_record import KINDS, chart
from nbcomm.charts.grid import Grid
from nbcomm.notebook.output.cell_options import CHARTS
from nbcomm.protocol import CallRecord, Done

from ..analysis.calls import step
from ..analysis.test_schedule import gpipe


def done(steps: list[CallRecord], *, began: float = 100.0, seconds: float = 10.0, dropped: int = 0) -> Done:
    return Done(1, began=began, seconds=seconds, steps=steps, dropped=dropped)


def test_a_step_has_its_parts_and_one_number() -> None:
    made = chart("step", {rank: done([step("all_reduce", 1, 102, 106, members=[0, 1], asked=105)]) for rank in (0, 1)})
    assert isinstance(made, Bars)
    assert [round(each) for each in made.values["rank 0"]] == [6, 3, 1, 0]
    assert made.notes == ["Overlap: 75% of the transfer was hidden behind compute."]


def test_a_pipeline_has_its_law() -> None:
    stages = gpipe(4, 4)
    answers = {rank: done(steps, began=1e-9, seconds=stages.now[rank]) for rank, steps in stages.steps.items()}
    made = chart("pipeline", answers)
    assert isinstance(made, Schedule)
    assert [each.text for each in made.stretches[0]] == ["F0", "F1", "F2", "F3", "B0", "B1", "B2", "B3"]
    assert made.notes == ["Idle 43% of the time; (p − 1) / (m + p − 1) is 43% for 4 stages and 4 micro-batches."]
    assert made.kinds == ["forward", "backward", "forward and backward"]


def test_bytes_have_a_row_for_each_sender() -> None:
    made = chart("bytes", {0: done([step("send", 1, 101, kind="send", peer=1, nbytes=2048)]), 1: done([])})
    assert isinstance(made, Grid)
    assert repr(made).splitlines()[:4] == [
        "Bytes from rank to rank, 2 KiB in all:",
        "to rank 0 1 2 3",
        "from rank 0: – 2 KiB 0 B 0 B",
        "from rank 1: 0 B – 0 B 0 B",
    ]


def test_without_calls_or_work_or_bytes_it_is_said_why_there_is_no_chart() -> None:
    assert "no collective" in str(chart("step", {0: done([])}))
    barrier = {rank: done([step("barrier", 1, 101, 102, members=[0, 1])]) for rank in (0, 1)}
    assert "no pipeline" in str(chart("pipeline", barrier))
    assert "No rank gave data" in str(chart("bytes", barrier))


def test_what_a_rank_that_died_did_is_not_drawn_and_what_was_not_kept_is_said() -> None:
    call = [step("all_reduce", 1, 102, 106, members=[0, 1])]
    made = chart("step", {0: done(call, dropped=3), 1: done([], began=0.0)})
    assert isinstance(made, Bars)
    assert [*made.values] == ["rank 0"]
    assert "The first calls of rank 0 are not kept" in made.notes[-1]


def test_what_a_cell_may_ask_for_is_what_can_be_drawn() -> None:
    assert (*KINDS,) == CHARTS
