"""What the ranks did together, told from each one's own steps; and what is made of it: ladder, timeline, pictures."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from nbcomm.analysis import perfetto
from nbcomm.analysis.collective_log import CollectiveLog
from nbcomm.analysis.ladder import ladder
from nbcomm.analysis.matching import MatchedCall, meetings
from nbcomm.analysis.story import Timeline
from nbcomm.analysis.timeline import straggler, timeline
from nbcomm.errors import SpecError
from nbcomm.panel.feed import packed_timeline
from nbcomm.pictures import from_cell
from nbcomm.protocol import CallRecord, Done, RankPlacement

WORLD = [0, 1, 2, 3]


def step(name: str, seq: int, began: float, ended: float = 0.0, **more: Any) -> CallRecord:
    values = {"kind": "collective", "group": "world", "members": WORLD, **more}
    return CallRecord(name=name, first=seq, last=seq, began=began, ended=ended, **values)


def met_at(*times: tuple[float, ...], name: str = "all_reduce") -> dict[int, list[CallRecord]]:
    """Each collective by the times at which the ranks came to it; it ends 0.1 s after the last came."""
    steps: dict[int, list[CallRecord]] = {rank: [] for rank in range(len(times[0]))}
    for seq, came in enumerate(times, 1):
        for rank, at in enumerate(came):
            steps[rank].append(step(name, seq, at, max(came) + 0.1, members=list(range(len(came)))))
    return steps


def test_a_collective_is_one_meeting_and_so_is_a_message() -> None:
    message = {"kind": "send", "members": WORLD, "tag": 7}
    steps = {
        0: [step("all_reduce", 1, 1.0, 1.5), step("send", 1, 2.0, 2.1, **message, peer=3)],
        1: [step("all_reduce", 1, 1.2, 1.5)],
        2: [step("all_reduce", 1, 1.1, 1.5)],
        3: [step("all_reduce", 1, 1.4, 1.5), step("recv", 1, 1.9, 2.1, **{**message, "kind": "recv"}, peer=0)],
    }
    first, second = meetings(steps)
    assert (first.name, first.seq, first.missing, first.began, first.met) == ("all_reduce", 1, [], 1.0, 1.4)
    assert (second.name, second.members, sorted(second.steps), second.began) == ("send", [0, 3], [0, 3], 1.9)


def test_who_never_came_is_missing_and_groups_count_for_themselves() -> None:
    pair = {"group": "pair", "members": [0, 1]}
    steps = {
        0: [step("barrier", 1, 1.0), step("barrier", 1, 2.0, 2.1, **pair)],
        1: [step("barrier", 1, 2.0, 2.1, **pair)],
    }
    world, group = meetings(steps)
    assert world.missing == [1, 2, 3]
    assert world.met == float("inf")
    assert group.missing == []


def test_a_receive_from_anyone_that_never_ended_is_nobodys() -> None:
    assert meetings({0: [step("recv", 1, 1.0, kind="recv", peer=None)]}) == []


# ── the timeline ──


def test_time_before_the_last_comes_is_waiting_and_after_it_transfer() -> None:
    steps = met_at((1.0, 3.0))
    made = timeline(7, {0: (0.0, 4.0), 1: (0.0, 4.0)}, meetings(steps), running=False)
    spans = {rank: [(s.kind, round(s.start, 3), round(s.end, 3)) for s in bar] for rank, bar in made.spans.items()}
    assert spans[0] == [("compute", 0, 1), ("waiting", 1, 3), ("transfer", 3, 3.1), ("compute", 3.1, 4)]
    assert spans[1] == [("compute", 0, 3), ("transfer", 3, 3.1), ("compute", 3.1, 4)]
    assert (made.cell, made.seconds, made.running) == (7, 4.0, False)


def test_who_still_waits_waits_until_now() -> None:
    steps = {0: [step("barrier", 1, 1.0, members=[0, 1])], 1: []}
    made = timeline(1, {0: (0.0, 5.0), 1: (0.0, 5.0)}, meetings(steps), running=True)
    assert [(s.kind, s.end) for s in made.spans[0]] == [("compute", 1.0), ("waiting", 5.0)]
    assert [s.kind for s in made.spans[1]] == ["compute"]


def test_the_straggler_is_named_with_what_it_cost() -> None:
    steps = met_at((0, 0, 1, 0), (2, 2, 3, 2), (4.0, 4.2, 4.0, 4.0))
    late, said = straggler(meetings(steps))
    assert late == 2
    assert said == "rank 2 came last in 2 of 3 collectives; ranks 0-1,3 waited up to 2.0 s for it."
    assert straggler(meetings(met_at((0, 0.01, 0.02, 0)))) == (None, "")
    assert straggler([]) == (None, "")


def bar_of(made: Timeline, rank: int) -> list[tuple[str, float, float]]:
    return [(span.kind, round(span.start, 3), round(span.end, 3)) for span in made.spans[rank]]


def test_a_bar_of_thousands_of_stretches_is_coarse_on_the_page_and_its_sums_are_true() -> None:
    steps = met_at(*((i * 1.0, i * 1.0 + 0.3) for i in range(2000)))
    made = timeline(1, {0: (0.0, 2000.0), 1: (0.0, 2000.0)}, meetings(steps), running=False)
    packed = packed_timeline(made)
    assert packed is not None
    for rank, ((_, totals, _, flat), waited) in enumerate(zip(packed[5], (600, 0), strict=True)):
        assert len(flat) <= 3 * 240
        assert totals == [pytest.approx(each) for each in (1800 - waited, waited, 200)]
        assert all(a.end == pytest.approx(b.start) for a, b in pairwise(made.spans[rank]))
    assert made.waiting == pytest.approx(600 / 4000)


def test_what_cpp_waits_for_is_no_transfer_of_all_that_follows() -> None:
    steps = {  # DDP's: nobody knows when they have ended
        rank: [step("all_reduce", seq, came + 10.0 * seq, members=[0, 1]) for seq in (1, 2)]
        for rank, came in enumerate((1.0, 3.0))
    }
    made = timeline(1, {0: (10.0, 30.0), 1: (10.0, 30.0)}, meetings(steps), running=False)
    assert bar_of(made, 0) == [
        ("compute", 0, 1),
        ("waiting", 1, 3),
        ("compute", 3, 11),
        ("waiting", 11, 13),
        ("compute", 13, 20),
    ]
    assert bar_of(made, 1) == [("compute", 0, 20)]
    alone = {0: [*steps[0][:1], step("barrier", 2, 25.0, members=[0, 1])], 1: steps[1][:1]}
    made = timeline(1, {0: (10.0, 30.0), 1: (10.0, 30.0)}, meetings(alone), running=True)
    assert bar_of(made, 0)[-2:] == [("compute", 3, 15), ("waiting", 15, 20)]


def test_what_a_rank_does_before_it_waits_for_a_handle_is_its_own_work() -> None:
    pair = {"members": [0, 1]}
    steps = {
        0: [step("all_reduce", 1, 1.0, 6.0, asked=5.0, **pair), step("barrier", 2, 2.0, 4.1, **pair)],
        1: [step("all_reduce", 1, 3.0, 3.1, **pair), step("barrier", 2, 4.0, 4.1, **pair)],
    }
    made = timeline(1, {0: (0.0, 6.0), 1: (0.0, 6.0)}, meetings(steps), running=False)
    assert bar_of(made, 0) == [
        ("compute", 0, 2),
        ("waiting", 2, 4),
        ("transfer", 4, 4.1),
        ("compute", 4.1, 5),
        ("transfer", 5, 6),
    ]
    assert made.sentence == "rank 1 came last in 2 of 2 collectives; rank 0 waited up to 2.0 s for it."
    steps[0][0] = step("all_reduce", 1, 1.0, 6.0, asked=math.inf, **pair)  # nobody has waited for it
    made = timeline(1, {0: (0.0, 6.0), 1: (0.0, 6.0)}, meetings(steps), running=False)
    assert bar_of(made, 0) == [("compute", 0, 2), ("waiting", 2, 4), ("transfer", 4, 4.1), ("compute", 4.1, 6)]


def test_a_meeting_is_looked_through_once_and_not_once_for_each_rank() -> None:
    looks = 0

    class Counted(dict[int, CallRecord]):
        def values(self) -> Any:
            nonlocal looks
            looks += 1
            return super().values()

    size = 64
    own = {rank: step("barrier", 1, 1.0 + rank, 70.0, members=list(range(size)), line="line 1") for rank in range(size)}
    meeting = MatchedCall("barrier", "world", list(range(size)), 1, Counted(own))
    made = timeline(1, dict.fromkeys(range(size), (0.0, 80.0)), [meeting], running=False)
    assert made.late == 63
    assert looks < 5


# ── the ladder ──


def test_a_hang_is_one_missing_mark_beside_arrived_ones() -> None:
    steps = met_at((1, 1, 1, 1))
    for rank in (0, 1, 3):
        steps[rank].append(step("broadcast", 2, 2.0, line="line 3: broadcast(x)"))
    made = ladder(4, meetings(steps), ended=False)
    assert made.group == "world"
    assert [(rung.seq, rung.name, rung.marks) for rung in made.rungs] == [
        (1, "all_reduce", ("done",) * 4),
        (2, "broadcast", ("arrived", "arrived", "missing", "arrived")),
    ]
    assert made.rungs[1].line == "line 3: broadcast(x)"


def test_the_ladder_is_of_the_group_in_which_somebody_waits() -> None:
    pair = {"group": "pair", "members": [1, 2]}
    steps = met_at((1, 1, 1, 1))
    steps[1].append(step("barrier", 1, 0.5, **pair))
    made = ladder(4, meetings(steps), ended=False)
    assert made.group == "ranks 1-2"
    assert made.rungs[0].marks == ("out", "arrived", "missing", "out")


def test_another_call_in_its_place_and_a_failure_have_marks_of_their_own() -> None:
    both = {"failed": True, "members": [0, 1]}
    steps = {0: [step("all_reduce", 1, 1.0, **both)], 1: [step("broadcast", 1, 2.0, **both)]}
    made = ladder(2, meetings(steps), ended=True)
    assert made.rungs[0].marks == ("failed", "other")


def test_what_is_long_past_counts_as_done() -> None:
    steps = met_at(*((float(i),) * 4 for i in range(1, 6)))
    steps[2] = steps[2][3:]  # it told only its last steps
    made = ladder(4, meetings(steps), ended=False)
    assert {mark for rung in made.rungs for mark in rung.marks} == {"done"}


# ── while it runs, and after ──


def test_a_chronicle_hears_the_last_steps_and_the_end_replaces_them() -> None:
    chronicle = CollectiveLog()
    chronicle.begin(3, [0, 1])
    began = chronicle._began[0]
    members = {"members": [0, 1]}
    chronicle.hear(0, [step("barrier", 1, began + 1, **members)])
    made, time = chronicle.story(2)
    assert made.rungs[0].marks == ("arrived", "missing")
    assert time.running
    chronicle.hear(1, [step("barrier", 1, began - 500, **members)])  # of the cell before
    assert chronicle.story(2)[0].rungs[0].marks == ("arrived", "missing")
    whole = [step("barrier", 1, began + 1, began + 2, **members)]
    chronicle.end({0: Done(1, 3.0, began=began, steps=whole), 1: Done(1, 3.0, began=began, steps=whole)})
    made, time = chronicle.story(2)
    assert made.rungs[0].marks == ("done", "done")
    assert (time.cell, time.running, round(time.seconds, 3)) == (3, False, 3.0)
    assert chronicle.story(2) is chronicle.story(2)


def test_the_last_cells_are_told_oldest_first_each_once_and_no_more_than_twenty() -> None:
    chronicle = CollectiveLog()
    assert chronicle.past() == ()
    for number in range(1, 31):
        late = met_at((0.0, 0.0, 1.0) if number % 2 else (0.0, 0.0, 0.0))
        chronicle.begin(number, [0, 1, 2])
        chronicle.end({rank: Done(number, 2.0, began=0.001, steps=late[rank]) for rank in range(3)})
        if number > 28:
            assert chronicle.story(3)[1].cell == number
            assert chronicle.past()[-1].cell == number
    past = chronicle.past()
    assert [each.cell for each in past] == list(range(11, 31))
    assert (past[-1].late, past[-2].late) == (None, 2)
    assert round(past[-2].waiting, 2) == 0.33
    assert past[-1].waiting == 0
    chronicle.begin(31, [0, 1, 2])
    assert chronicle.past() == past  # it has not ended


def test_a_stretch_has_the_line_and_the_data_of_its_call() -> None:
    steps = {
        rank: [step("all_reduce", 1, began, 3.1, members=[0, 1], line="line 2: all_reduce(x)", nbytes=8)]
        for rank, began in enumerate((1.0, 3.0))
    }
    made = timeline(7, {0: (0.0, 4.0), 1: (0.0, 4.0)}, meetings(steps), running=False)
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
    chronicle = CollectiveLog()
    chronicle.begin(3, [0, 1])
    began = chronicle._began[0] - 1000
    chronicle._began = dict.fromkeys(range(2), began)
    steps = met_at(*((began + i, began + i + 0.5) for i in range(1000)))
    for rank in range(2):
        for at in range(0, 1000, 16):
            chronicle.hear(rank, steps[rank][at : at + 16])
    made = chronicle.story(2)[1]
    assert made.spans[0][0].start == pytest.approx(1000 - 256 + 0.5)
    chronicle.end({rank: Done(1, 1000.0, began=began, steps=steps[rank][400:], dropped=400) for rank in range(2)})
    made = chronicle.story(2)[1]
    assert (made.seconds, made.spans[0][0].start) == (1000.0, pytest.approx(400.5))
    assert made.waiting == pytest.approx(0.25, abs=0.001)
    assert made.sentence == "rank 1 came last in 600 of the last 600 collectives; rank 0 waited up to 300.0 s for it."
    assert chronicle.past()[-1].waiting == made.waiting
    chronicle.begin(4, [0, 1])
    chronicle.end({rank: Done(1, 1.0, began=began, steps=[]) for rank in range(2)})
    assert chronicle.story(2)[1].spans[0][0].start == 0


# ── the pictures ──


def test_a_drawn_cell_has_the_values_that_the_ranks_told() -> None:
    steps = {
        rank: [step("all_reduce", 4, 1.0 + rank, 5.0, how={"op": "max"}, before=[f"{rank}"], after=["3"])]
        for rank in range(4)
    }
    [plan], rest = from_cell.plans(steps)
    assert rest == ""
    assert plan.title == "all_reduce · max · #4"
    assert [plan.before[rank][0].text for rank in WORLD] == ["0", "1", "2", "3"]
    assert plan.after[2][0].sources == (0, 1, 2, 3)
    assert plan.notes == ("rank 3 came last, 3.00 s after the first.",)


def test_joined_shares_of_several_lengths_are_one_value_of_all() -> None:
    def drawn(lengths: list[int]) -> Any:
        steps = {}
        for rank, length in enumerate(lengths):
            how = {"mode": "cat", "each": length, "whole": ["[0 0 1 2]"]}
            steps[rank] = [step("all_gather", 1, 1.0, 2.0, how=how, before=["x"], after=["[0]", "[0]", "[1]", "[2]"])]
        [plan], _ = from_cell.plans(steps)
        return plan

    uneven, even = drawn([2, 1, 1, 0]), drawn([1, 1, 1, 1])
    assert [cell.text for cell in even.after[1]] == ["[0]", "[0]", "[1]", "[2]"]
    assert [(cell.text, cell.sources) for cell in uneven.after[1]] == [("[0 0 1 2]", (0, 1, 2, 3))]
    assert {(flow.src, flow.place) for flow in uneven.flows if flow.dst == 1} == {(rank, 0) for rank in WORLD}


def test_what_was_not_kept_is_counted_and_nothing_at_all_is_said() -> None:
    drawn = {"how": {}, "before": [], "after": []}
    many = {rank: [step("barrier", seq, float(seq), seq + 0.1, **drawn) for seq in range(1, 31)] for rank in range(4)}
    plans, rest = from_cell.plans(many, dict.fromkeys(WORLD, 70))
    assert len(plans) == from_cell.MOST
    assert rest == "… and 88 more, which are not drawn."
    assert from_cell.plans({0: []}) == ([], "This cell made no collective, so there is nothing to draw.")


DRAWN = {"how": {}, "before": [], "after": []}


@pytest.mark.parametrize(
    ("own", "dropped", "said"),
    [
        ([step("barrier", 600, 1.0, 1.1)], 88, "Nothing is drawn: this cell made 88 more collectives than are kept."),
        ([step("barrier", 1, 1.0, 1.1)], 0, "Nothing is drawn: the values of this cell's barrier could not be kept."),
        ([step("monitored_barrier", 1, 1.0)], 0, "Nothing is drawn: there is no picture of monitored_barrier."),
        ([], -1, "What ranks 0-3 did is not known: nbcomm failed to report it."),
        ([], 5, "Nothing is drawn: this cell made 5 more collectives than are kept."),
    ],
)
def test_where_nothing_is_drawn_it_is_said_why(own: list[CallRecord], dropped: int, said: str) -> None:
    plans, rest = from_cell.plans(dict.fromkeys(WORLD, own), dict.fromkeys(WORLD, dropped))
    assert plans == []
    assert rest.startswith(said)
    assert "made no collective" not in rest


def test_who_has_not_kept_what_it_did_is_not_said_to_be_missing() -> None:
    steps = {rank: [step("barrier", 1, 1.0, 1.1, **DRAWN)] for rank in range(2)}
    steps[2] = [step("barrier", 2, 2.0, 2.1, **DRAWN)]
    steps[3] = []
    (first, second), rest = from_cell.plans(steps, {0: 0, 1: 0, 2: 1, 3: -1})
    assert first.missing == ()
    assert first.notes == ("What ranks 2-3 did there is not kept.",)
    assert second.missing == (0, 1)
    assert second.notes == ("ranks 0-1 did not arrive.", "What rank 3 did there is not kept.")
    assert rest == "… and 1 more, which are not drawn. What rank 3 did is not known: nbcomm failed to report it."


def test_who_called_something_else_is_in_the_picture() -> None:
    drawn = {"how": {"op": "sum"}, "before": ["1"], "after": None, "failed": True}
    steps = {rank: [step("all_reduce", 1, 1.0, **drawn)] for rank in range(1, 4)}
    steps[0] = [step("broadcast", 1, 0.5, **{**drawn, "how": {"src": 0}})]
    [plan], _ = from_cell.plans(steps)
    assert plan.title == "all_reduce · sum · #1"
    assert "Rank 0 called broadcast in its place." in plan.notes
    assert plan.missing == ()


def test_who_never_came_is_in_the_picture() -> None:
    drawn = {"how": {"op": "sum"}, "before": ["1"], "after": None, "failed": True}
    steps = {rank: [step("all_reduce", 1, 1.0, **drawn)] for rank in (0, 1, 3)}
    [plan], _ = from_cell.plans(steps)
    assert plan.missing == (2,)
    assert "rank 2 did not arrive." in plan.notes
    assert "It failed on ranks 0-1,3." in plan.notes


# ── the trace ──


def test_bandwidths_are_those_of_nccl_tests() -> None:
    assert perfetto.bandwidths("all_reduce", 10**9, 1.0, 4) == (1.0, 1.5)
    assert perfetto.bandwidths("all_gather", 10**9, 1.0, 4) == (4.0, 3.0)
    assert perfetto.bandwidths("reduce_scatter", 4 * 10**9, 1.0, 4) == (4.0, 3.0)
    assert perfetto.bandwidths("broadcast", 10**9, 2.0, 4) == (0.5, 0.5)
    assert perfetto.bandwidths("all_to_all", 4 * 10**9, 1.0, 4) == (4.0, 3.0)
    assert perfetto.bandwidths("barrier", 0, 0.0, 4) == (0.0, 0.0)


def test_a_trace_has_a_track_for_each_rank_with_waits_apart(tmp_path: Path) -> None:
    members = {"members": [0, 1], "nbytes": 10**6}
    answers = {
        0: Done(1, 3.0, began=100.0, steps=[step("all_reduce", 1, 100.5, 102.0, **members)]),
        1: Done(1, 2.5, began=100.1, steps=[step("all_reduce", 1, 101.5, 102.0, **members)]),
    }
    places = [RankPlacement(rank, 2, rank, 2, 0, 1, "cpu", "gloo", 1) for rank in range(2)]
    file = tmp_path / "trace.json"
    assert perfetto.write(file, places, 5, "all_reduce(x)", answers) == 1
    events = json.loads(file.read_text())["traceEvents"]
    names = {(e["tid"], e["args"]["name"]) for e in events if e["name"] == "thread_name"}
    assert names == {(0, "rank 0 (cpu)"), (1, "rank 1 (cpu)")}
    own = [(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["tid"] == 0]
    assert own == [
        ("cell 5", 0.0, 3e6),
        ("all_reduce", 5e5, 1.5e6),
        ("waiting", 5e5, 1e6),
        ("transfer", 1.5e6, 5e5),
    ]
    [call] = [e["args"] for e in events if e["name"] == "all_reduce" and e["tid"] == 1]
    assert call["bytes"] == 10**6
    assert call["algorithm bandwidth (GB/s)"] == 0.002
    assert call["bus bandwidth (GB/s)"] == 0.002


def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="needs a file's name"):
        perfetto.check(" ")
    with pytest.raises(SpecError, match="is a folder"):
        perfetto.check(str(tmp_path))
    with pytest.raises(SpecError, match="There is no folder"):
        perfetto.check(str(tmp_path / "no" / "t.json"))
    assert perfetto.check(str(tmp_path / "t.json")) == tmp_path / "t.json"
