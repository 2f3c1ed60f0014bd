"""How each rank stands to the last collectives of a group."""

from __future__ import annotations

from typing import Any

import pytest

from nbcomm.analysis.ladder import ladder
from nbcomm.analysis.matching import matched_calls
from nbcomm.analysis.story import Ladder

from .calls import met_at, step


def test_a_hang_is_one_missing_mark_beside_arrived_ones() -> None:
    steps = met_at((1, 1, 1, 1))
    for rank in (0, 1, 3):
        steps[rank].append(step("broadcast", 2, 2.0, line="line 3: broadcast(x)"))
    made = ladder(4, matched_calls(steps), ended=False)
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
    made = ladder(4, matched_calls(steps), ended=False)
    assert made.group == "ranks 1-2"
    assert made.rungs[0].marks == ("out", "arrived", "missing", "out")


def test_another_call_in_its_place_and_a_failure_have_marks_of_their_own() -> None:
    both = {"failed": True, "members": [0, 1]}
    steps = {0: [step("all_reduce", 1, 1.0, **both)], 1: [step("broadcast", 1, 2.0, **both)]}
    made = ladder(2, matched_calls(steps), ended=True)
    assert made.rungs[0].marks == ("failed", "other")


def test_what_is_long_past_counts_as_done() -> None:
    steps = met_at(*((float(i),) * 4 for i in range(1, 6)))
    steps[2] = steps[2][3:]  # it told only its last steps
    made = ladder(4, matched_calls(steps), ended=False)
    assert {mark for rung in made.rungs for mark in rung.marks} == {"done"}


def test_messages_are_on_no_ladder() -> None:
    ring = {rank: [step("sendrecv", 1, 1.0, 2.0)] for rank in (0, 1)}
    message = [step("send", 1, 3.0, 4.0, kind="send", peer=1)]
    assert ladder(2, matched_calls(ring), ended=True) == ladder(2, matched_calls({0: message}), ended=True) == Ladder()
    assert ladder(2, [], ended=True) == Ladder("world", ())


def test_the_ladder_has_the_last_dozen_of_the_group_that_was_used_last() -> None:
    steps = met_at(*((float(seq),) * 3 for seq in range(1, 15)))
    assert [rung.seq for rung in ladder(3, matched_calls(steps), ended=True).rungs] == list(range(3, 15))
    for rank in (0, 1):
        steps[rank].append(step("barrier", 1, 20.0, 20.1, group="pair", members=[0, 1]))
    made = ladder(3, matched_calls(steps), ended=True)
    assert (made.group, [(rung.seq, rung.marks) for rung in made.rungs]) == (
        "ranks 0-1",
        [(1, ("done", "done", "out"))],
    )


def test_rungs_are_in_the_order_of_their_numbers() -> None:
    steps = {0: [step("barrier", 2, 1.0, members=[0, 1])], 1: [step("gather", 1, 2.0, members=[0, 1])]}
    assert [(rung.seq, rung.marks) for rung in ladder(2, matched_calls(steps), ended=False).rungs] == [
        (1, ("done", "arrived")),
        (2, ("arrived", "missing")),
    ]


@pytest.mark.parametrize(
    ("own", "other", "ended", "mark"),
    [
        ({"ended": 2.0}, True, False, "done"),
        ({"ended": 2.0}, False, True, "done"),
        ({}, True, False, "arrived"),
        ({}, True, True, "done"),
        ({}, False, False, "arrived"),
        ({}, False, True, "arrived"),
        ({"failed": True}, True, False, "arrived"),
        ({"failed": True}, True, True, "failed"),
        ({"failed": True, "ended": 2.0}, False, True, "failed"),
    ],
)
def test_the_mark_of_a_rank_that_came(own: dict[str, Any], other: bool, ended: bool, mark: str) -> None:
    steps = {0: [step("barrier", 1, 1.0, members=[0, 1], **own)]}
    if other:
        steps[1] = [step("barrier", 1, 1.0, members=[0, 1])]
    assert ladder(2, matched_calls(steps), ended=ended).rungs[0].marks[0] == mark
