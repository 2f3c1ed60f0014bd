"""Where a cell's time went."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from nbcomm.analysis.matching import MatchedCall, matched_calls
from nbcomm.analysis.story import Span, Timeline
from nbcomm.analysis.timeline import straggler, timeline
from nbcomm.panel.feed import packed_timeline
from nbcomm.protocol import CallRecord

from .calls import met_at, step


def test_time_before_the_last_comes_is_waiting_and_after_it_transfer() -> None:
    steps = met_at((1.0, 3.0))
    made = timeline(7, {0: (0.0, 4.0), 1: (0.0, 4.0)}, matched_calls(steps), running=False)
    spans = {rank: [(s.kind, round(s.start, 3), round(s.end, 3)) for s in bar] for rank, bar in made.spans.items()}
    assert spans[0] == [("compute", 0, 1), ("waiting", 1, 3), ("transfer", 3, 3.1), ("compute", 3.1, 4)]
    assert spans[1] == [("compute", 0, 3), ("transfer", 3, 3.1), ("compute", 3.1, 4)]
    assert (made.cell, made.seconds, made.running) == (7, 4.0, False)


def test_who_still_waits_waits_until_now() -> None:
    steps = {0: [step("barrier", 1, 1.0, members=[0, 1])], 1: []}
    made = timeline(1, {0: (0.0, 5.0), 1: (0.0, 5.0)}, matched_calls(steps), running=True)
    assert [(s.kind, s.end) for s in made.spans[0]] == [("compute", 1.0), ("waiting", 5.0)]
    assert [s.kind for s in made.spans[1]] == ["compute"]


def test_the_straggler_is_named_with_what_it_cost() -> None:
    steps = met_at((0, 0, 1, 0), (2, 2, 3, 2), (4.0, 4.2, 4.0, 4.0))
    late, said = straggler(matched_calls(steps))
    assert late == 2
    assert said == "rank 2 came last in 2 of 3 collectives; ranks 0-1,3 waited up to 2.0 s for it."
    assert straggler(matched_calls(met_at((0, 0.01, 0.02, 0)))) == (None, "")
    assert straggler([]) == (None, "")


def bar_of(made: Timeline, rank: int) -> list[tuple[str, float, float]]:
    return [(span.kind, round(span.start, 3), round(span.end, 3)) for span in made.spans[rank]]


def test_a_bar_of_thousands_of_stretches_is_coarse_on_the_page_and_its_sums_are_true() -> None:
    steps = met_at(*((i * 1.0, i * 1.0 + 0.3) for i in range(2000)))
    made = timeline(1, {0: (0.0, 2000.0), 1: (0.0, 2000.0)}, matched_calls(steps), running=False)
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
    made = timeline(1, {0: (10.0, 30.0), 1: (10.0, 30.0)}, matched_calls(steps), running=False)
    assert bar_of(made, 0) == [
        ("compute", 0, 1),
        ("waiting", 1, 3),
        ("compute", 3, 11),
        ("waiting", 11, 13),
        ("compute", 13, 20),
    ]
    assert bar_of(made, 1) == [("compute", 0, 20)]
    alone = {0: [*steps[0][:1], step("barrier", 2, 25.0, members=[0, 1])], 1: steps[1][:1]}
    made = timeline(1, {0: (10.0, 30.0), 1: (10.0, 30.0)}, matched_calls(alone), running=True)
    assert bar_of(made, 0)[-2:] == [("compute", 3, 15), ("waiting", 15, 20)]


def test_what_a_rank_does_before_it_waits_for_a_handle_is_its_own_work() -> None:
    pair = {"members": [0, 1]}
    steps = {
        0: [step("all_reduce", 1, 1.0, 6.0, asked=5.0, **pair), step("barrier", 2, 2.0, 4.1, **pair)],
        1: [step("all_reduce", 1, 3.0, 3.1, **pair), step("barrier", 2, 4.0, 4.1, **pair)],
    }
    made = timeline(1, {0: (0.0, 6.0), 1: (0.0, 6.0)}, matched_calls(steps), running=False)
    assert bar_of(made, 0) == [
        ("compute", 0, 2),
        ("waiting", 2, 4),
        ("transfer", 4, 4.1),
        ("compute", 4.1, 5),
        ("transfer", 5, 6),
    ]
    assert made.sentence == made.said == "rank 1 came last in 2 of 2 collectives; rank 0 waited up to 2.0 s for it."
    assert replace(made, rates="9 MB/s within one").said.endswith("waited up to 2.0 s for it · 9 MB/s within one")
    steps[0][0] = step("all_reduce", 1, 1.0, 6.0, asked=math.inf, **pair)  # nobody has waited for it
    made = timeline(1, {0: (0.0, 6.0), 1: (0.0, 6.0)}, matched_calls(steps), running=False)
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
    matched = MatchedCall("barrier", "world", tuple(range(size)), 1, Counted(own))
    made = timeline(1, dict.fromkeys(range(size), (0.0, 80.0)), [matched], running=False)
    assert made.late == 63
    assert looks < 5


def test_without_a_rank_there_is_no_time() -> None:
    assert timeline(7, {}, [], running=True) == Timeline(7, 0.0, True, {})


def test_the_time_goes_from_the_first_begin_to_the_last_end() -> None:
    made = timeline(7, {1: (11.0, 13.0), 0: (10.5, 14.0)}, [], running=False)
    assert made == Timeline(7, 3.5, False, {0: (Span("compute", 0.0, 3.5),), 1: (Span("compute", 0.5, 2.5),)}, "", None)
    assert list(made.spans) == [0, 1]
    assert timeline(7, {0: (14.0, 10.0)}, [], running=False).seconds == 0.0, "a clock was set back"


@pytest.mark.parametrize(
    ("last", "running", "expected"),
    [
        ({}, False, [("compute", 0, 1), ("waiting", 1, 3), ("compute", 3, 5)]),
        ({}, True, [("compute", 0, 1), ("waiting", 1, 3), ("transfer", 3, 5)]),
        ({"failed": True}, False, [("compute", 0, 1), ("waiting", 1, 3), ("transfer", 3, 5)]),
    ],
    ids=["C++ waited", "goes on", "failed"],
)
def test_the_end_of_a_last_call_of_which_it_is_not_known(
    last: dict[str, Any], running: bool, expected: list[tuple[str, float, float]]
) -> None:
    steps = {rank: [step("all_reduce", 1, came, members=[0, 1], **last)] for rank, came in enumerate((1.0, 3.0))}
    made = timeline(1, {0: (0.0, 5.0), 1: (0.0, 5.0)}, matched_calls(steps), running=running)
    assert bar_of(made, 0) == expected


@pytest.mark.parametrize(
    ("second", "call"),
    [({}, ("barrier #1", "line 2", 8)), ({"line": "line 3"}, ("", "", 0)), ({"nbytes": 9}, ("", "", 0))],
)
def test_stretches_of_one_kind_are_one_and_have_a_name_if_they_have_one(
    second: dict[str, Any], call: tuple[str, str, int]
) -> None:
    own = {"members": [0], "line": "line 2", "nbytes": 8}
    steps = {0: [step("barrier", 1, 1.0, 2.0, **own), step("barrier", 1, 2.0, 3.0, **{**own, "group": "b", **second})]}
    made = timeline(1, {0: (1.0, 3.0)}, matched_calls(steps), running=False)
    assert made.spans == {0: (Span("transfer", 0.0, 2.0, *call),)}


def test_a_line_that_a_rank_does_not_know_is_that_of_another() -> None:
    steps = {rank: [step("barrier", 1, 1.0, 2.0, members=[0, 1], line="line 2" * rank)] for rank in (0, 1)}
    made = timeline(1, {0: (1.0, 2.0), 1: (1.0, 2.0)}, matched_calls(steps), running=False)
    assert [span.line for span in made.spans[0]] == ["line 2"]


@pytest.mark.parametrize(
    ("times", "late", "count", "seconds"),
    [
        ([(0.0, 2.0)], 1, "the only collective", 2.0),
        ([(0.0, 0.1)], 1, "the only collective", 0.1),
        ([(0.0, 0.06), (1.0, 1.06)], 1, "2 of 2 collectives", 0.1),
        ([(0.0, 2.5), (6.0, 4.0), (6.5, 5.5)], 0, "2 of 3 collectives", 3.0),
        ([(0.0, 3.5), (6.0, 4.0), (6.5, 5.5)], 1, "1 of 3 collectives", 3.5),
    ],
)
def test_the_straggler_is_who_was_waited_for_longest(
    times: list[tuple[float, float]], late: int, count: str, seconds: float
) -> None:
    said = f"rank {late} came last in {count}; rank {1 - late} waited up to {seconds} s for it."
    assert straggler(matched_calls(met_at(*times))) == (late, said)


@pytest.mark.parametrize("times", [[(0.0, 0.09)], [(0.0,), (5.0,)]], ids=["not long", "alone"])
def test_nobody_is_named_where_nobody_waited_long(times: list[tuple[float, ...]]) -> None:
    assert straggler(matched_calls(met_at(*times))) == (None, "")


def test_a_collective_that_somebody_has_not_reached_tells_no_straggler() -> None:
    steps = met_at((0.0, 2.0, 0.0))
    del steps[0]
    assert straggler(matched_calls(steps)) == (None, "")


def test_a_collective_of_one_rank_is_none_that_anybody_came_last_in() -> None:
    steps = met_at((0.0, 2.0))
    steps[0].append(step("barrier", 1, 5.0, 5.1, group="own", members=[0]))
    assert straggler(matched_calls(steps))[1].startswith("rank 1 came last in the only collective; ")


def test_what_nobody_waits_for_does_not_end_what_goes_on() -> None:
    pair = {"members": [0, 1]}
    steps = {
        0: [step("all_reduce", 1, 1.0, **pair), step("all_reduce", 2, 2.0, asked=math.inf, **pair)],
        1: [step("all_reduce", 1, 3.0, **pair)],
    }
    made = timeline(1, {0: (0.0, 5.0), 1: (0.0, 5.0)}, matched_calls(steps), running=True)
    assert bar_of(made, 0) == [("compute", 0, 1), ("waiting", 1, 3), ("transfer", 3, 5)]


def test_a_call_of_which_the_end_is_not_known_has_ended_when_the_next_begins() -> None:
    first, second = {"members": [0, 1]}, {"members": [0, 1], "group": "pair"}
    steps = {
        0: [step("all_reduce", 1, 1.0, **first), step("barrier", 1, 2.0, 2.625, **second)],
        1: [step("barrier", 1, 2.5, 2.625, **second), step("all_reduce", 1, 3.0, **first)],
    }
    made = timeline(1, {0: (0.0, 5.0), 1: (0.0, 5.0)}, matched_calls(steps), running=False)
    assert bar_of(made, 0) == [
        ("compute", 0, 1),
        ("waiting", 1, 2.5),
        ("transfer", 2.5, 2.625),
        ("compute", 2.625, 5),
    ]
