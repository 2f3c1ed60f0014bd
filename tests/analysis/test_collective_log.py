"""What is known of a cell while it runs, and after."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nbcomm.analysis import collective_log, perfetto
from nbcomm.analysis.collective_log import CollectiveLog
from nbcomm.analysis.matching import matched_calls
from nbcomm.analysis.story import Ladder, Past, Span, Timeline
from nbcomm.analysis.timeline import timeline
from nbcomm.launch.placement import NodeShare, assign_places
from nbcomm.protocol import CallRecord, Done
from nbcomm.protocol.codec import decode_from_rank, from_frames, to_frames

from ..growth import lines_run
from .calls import met_at, step


def test_a_chronicle_hears_the_last_steps_and_the_end_replaces_them() -> None:
    log = CollectiveLog()
    log.begin(3, [0, 1])
    began = log._began[0]
    members = {"members": [0, 1]}
    log.hear(0, [step("barrier", 1, began + 1, **members)])
    made, time = log.story(2)
    assert made.rungs[0].marks == ("arrived", "missing")
    assert time.running
    log.hear(1, [step("barrier", 1, began - 500, **members)])  # of the cell before
    assert log.story(2)[0].rungs[0].marks == ("arrived", "missing")
    whole = [step("barrier", 1, began + 1, began + 2, **members)]
    log.end({0: Done(1, 3.0, began=began, steps=whole), 1: Done(1, 3.0, began=began, steps=whole)})
    made, time = log.story(2)
    assert made.rungs[0].marks == ("done", "done")
    assert (time.cell, time.running, round(time.seconds, 3)) == (3, False, 3.0)
    assert log.story(2) is log.story(2)


def test_the_last_cells_are_told_oldest_first_each_once_and_no_more_than_twenty() -> None:
    log = CollectiveLog()
    assert log.past() == ()
    for number in range(1, 31):
        late = met_at((0.0, 0.0, 1.0) if number % 2 else (0.0, 0.0, 0.0))
        log.begin(number, [0, 1, 2])
        log.end({rank: Done(number, 2.0, began=0.001, steps=late[rank]) for rank in range(3)})
        if number > 28:
            assert log.story(3)[1].cell == number
            assert log.past()[-1].cell == number
    past = log.past()
    assert [each.cell for each in past] == list(range(11, 31))
    assert (past[-1].late, past[-2].late) == (None, 2)
    assert round(past[-2].waiting, 2) == 0.33
    assert past[-1].waiting == 0
    log.begin(31, [0, 1, 2])
    assert log.past() == past  # it has not ended


def test_a_stretch_has_the_line_and_the_data_of_its_call() -> None:
    steps = {
        rank: [step("all_reduce", 1, began, 3.1, members=[0, 1], line="line 2: all_reduce(x)", nbytes=8)]
        for rank, began in enumerate((1.0, 3.0))
    }
    made = timeline(7, {0: (0.0, 4.0), 1: (0.0, 4.0)}, matched_calls(steps), running=False)
    waits = made.spans[0][1]
    assert (waits.kind, waits.name, waits.line, waits.nbytes) == (
        "waiting",
        "all_reduce #1",
        "line 2: all_reduce(x)",
        8,
    )
    assert made.late == 1
    assert round(made.waiting, 3) == 0.25


def test_of_a_long_loop_the_end_is_told_and_said_to_be_the_end() -> None:
    log = CollectiveLog()
    log.begin(3, [0, 1])
    began = log._began[0] - 1000
    log._began = dict.fromkeys(range(2), began)
    steps = met_at(*((began + i, began + i + 0.5) for i in range(1000)))
    for rank in range(2):
        for at in range(0, 1000, 16):
            log.hear(rank, steps[rank][at : at + 16])
    made = log.story(2)[1]
    assert made.spans[0][0].start == pytest.approx(1000 - 256 + 0.5)
    log.end({rank: Done(1, 1000.0, began=began, steps=steps[rank][400:], dropped=400) for rank in range(2)})
    made = log.story(2)[1]
    assert (made.seconds, made.spans[0][0].start) == (1000.0, pytest.approx(400.5))
    assert made.waiting == pytest.approx(0.25, abs=0.001)
    assert made.sentence == "rank 1 came last in 600 of the last 600 collectives; rank 0 waited up to 300.0 s for it."
    assert log.past()[-1].waiting == made.waiting
    log.begin(4, [0, 1])
    log.end({rank: Done(1, 1.0, began=began, steps=[]) for rank in range(2)})
    assert log.story(2)[1].spans[0][0].start == 0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets what time it is."""

    def set_to(now: float) -> None:
        monkeypatch.setattr(collective_log.time, "time", lambda: now)

    return set_to


def test_before_any_cell_there_is_nothing_to_tell() -> None:
    log = CollectiveLog()
    log.hear(0, [step("barrier", 1, 1.0)])
    assert log.story(2) == (Ladder(), Timeline(0, 0.0, False, {}))
    assert log.past() == ()


def test_a_step_is_heard_if_it_is_of_this_cell_and_of_a_rank_that_runs_it(clock: Callable[[float], None]) -> None:
    clock(0.5)
    log = CollectiveLog()
    log.begin(3, [0, 1])
    for seq, began in enumerate((-0.75, -0.5, 0.25, 1.0), 1):  # a clock may have been set back by up to a second
        log.hear(0, [step("barrier", seq, began, began + 0.1, members=[0, 1])])
    log.hear(7, [step("barrier", 9, 1.0, members=[0, 1])])
    clock(5.5)
    rungs, line = log.story(2)
    assert [rung.seq for rung in rungs.rungs] == [2, 3, 4]
    assert (line.seconds, line.spans[1]) == (5.0, (Span("compute", 0.0, 5.0),))
    log.end({0: Done(1, 1.0, began=0.5)})
    log.hear(1, [step("barrier", 5, 2.0, members=[0, 1])])
    assert log.story(2)[0] == Ladder()


def test_who_has_died_ran_until_the_cell_ended_and_who_has_not_answered_did_not_run(
    clock: Callable[[float], None],
) -> None:
    clock(100.0)
    log = CollectiveLog()
    log.begin(3, [0, 1, 2])
    clock(104.0)
    log.end({0: Done(1, 2.0, began=101.0), 1: Done(1)})
    clock(200.0)
    assert log.past() == (Past(3, 4.0, 0.0, None),)
    bars = log.story(3)[1].spans
    assert (bars[0], bars[1]) == ((Span("compute", 1.0, 3.0),), (Span("compute", 0.0, 4.0),))


def test_a_failure_is_told_once_the_cell_has_ended() -> None:
    log = CollectiveLog()
    log.begin(3, [0])
    failed = step("barrier", 1, log._began[0], failed=True, members=[0])
    log.hear(0, [failed])
    assert log.story(1)[0].rungs[0].marks == ("arrived",)
    log.end({0: Done(1, 1.0, began=log._began[0], steps=[failed])})
    assert log.story(1)[0].rungs[0].marks == ("failed",)


@pytest.mark.parametrize("ended", [False, True])
def test_the_bar_of_a_rank_that_died_ends_with_it(ended: bool) -> None:
    log = CollectiveLog()
    log.begin(3, [0, 1])
    began = log._began[0] = log._began[1] = log._began[0] - 50
    if ended:
        log.end({0: Done(1, 50.0, began=began), 1: Done(1)})
    spans = log.story(2, died={1: began + 20})[1].spans
    assert spans[1] == (Span("compute", 0.0, 20.0),)
    assert spans[0][0].end >= 50


def test_what_was_forgotten_is_not_told() -> None:
    log = CollectiveLog()
    log.begin(3, [0])
    log.end({0: Done(1, 1.0, began=1.0, steps=[step("barrier", 1, 1.0, members=[0])])})
    assert log.story(1)[0] != Ladder()
    log.forget()
    assert log.story(1) == (Ladder(), Timeline(3, 0.0, False, {}))


@pytest.mark.parametrize("dropped", [0, 1])
def test_a_past_cell_is_the_same_whether_its_story_was_told_or_not(dropped: int) -> None:
    told, untold = CollectiveLog(), CollectiveLog()
    steps = [
        [step("barrier", 1, 11.0, 11.0, members=[0, 1]), step("all_reduce", 2, came, members=[0, 1])]
        for came in (14.0, 16.0)
    ]
    for log in (told, untold):
        log.begin(3, [0, 1])
        log.end({rank: Done(1, 8.0, began=10.0, dropped=dropped, steps=steps[rank]) for rank in (0, 1)})
    assert told.story(2)[1].spans[0][0] == Span("compute", 1.0 if dropped else 0.0, 4.0)
    assert told.past() == untold.past() == (Past(3, 8.0, 2 / 14 if dropped else 2 / 16, 1),)


@pytest.mark.parametrize("dropped", [0, 1])
def test_what_was_not_kept_while_a_cell_ran_is_known_when_it_has_ended(dropped: int) -> None:
    log = CollectiveLog()
    log.begin(3, [0])
    began = log._began[0]
    steps = [step("barrier", seq, began + seq, began + seq, members=[0]) for seq in range(1, 301)]
    log.hear(0, steps)
    assert log.story(1)[1].spans[0] == (), "the cell has just begun, and its first calls are not kept"
    log.end({0: Done(1, 400.0, began=began, steps=steps, dropped=dropped)})
    assert log.story(1)[1].spans[0] == (Span("compute", float(dropped), 400.0),)


SAYS: dict[str, Callable[[int, int, int, float], list[CallRecord]]] = {
    "collectives": lambda _, size, seq, at: [step("all_reduce", seq, at, at + 0.1, members=range(size))],
    "messages": lambda rank, size, seq, at: [
        step("send", seq, at, at + 0.1, kind="send", members=range(size), peer=(rank + 1) % size),
        step("recv", seq, at, at + 0.1, kind="recv", members=range(size), peer=(rank - 1) % size),
    ],
}
"""What a rank says of one round of a cell; its line is not known."""


@pytest.mark.parametrize("what", ["story", "trace"])
@pytest.mark.parametrize("kind", SAYS)
def test_the_work_grows_as_the_ranks_do(kind: str, what: str, tmp_path: Path) -> None:
    def work(size: int) -> int:
        log, answers = CollectiveLog(), {}
        log.begin(1, range(size))
        for rank in range(size):
            steps = [call for seq in range(1, 5) for call in SAYS[kind](rank, size, seq, seq + rank / 1000)]
            answers[rank] = Done(1, 9.0, began=1.0, steps=steps)
        log.end(answers)
        if what == "story":
            return lines_run(lambda: log.story(size))
        places = assign_places([NodeShare(size, cores=4)], "cpu", "gloo")
        return lines_run(lambda: perfetto.write(tmp_path / "trace.json", places, 1, "", answers))

    assert work(256) < 6 * work(64), "4 times the ranks; a square law would be 16"


def test_the_end_of_a_cell_costs_the_same_for_many_calls() -> None:
    def work(count: int) -> int:
        log = CollectiveLog()
        log.begin(1, [0])
        steps = [step("all_reduce", seq, seq, seq + 0.1) for seq in range(1, count + 1)]
        first, own = to_frames(Done(1, 9.0, began=1.0, steps=steps, dropped=7))
        done, _ = from_frames(decode_from_rank(first), [own])
        assert isinstance(done, Done)
        return lines_run(lambda: log.end({0: done}))

    assert work(512) == work(1), "they are read when somebody asks"
