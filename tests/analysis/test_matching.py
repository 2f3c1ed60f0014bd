"""What the ranks did together, told from each one's own steps; and the pictures that are made of it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from nbcomm.analysis.matching import MatchedCall, matched_calls
from nbcomm.pictures import from_cell
from nbcomm.protocol import CallRecord

from .calls import WORLD, step


def test_a_collective_is_one_meeting_and_so_is_a_message() -> None:
    message = {"kind": "send", "members": WORLD, "tag": 7}
    steps = {
        0: [step("all_reduce", 1, 1.0, 1.5), step("send", 1, 2.0, 2.1, **message, peer=3)],
        1: [step("all_reduce", 1, 1.2, 1.5)],
        2: [step("all_reduce", 1, 1.1, 1.5)],
        3: [step("all_reduce", 1, 1.4, 1.5), step("recv", 1, 1.9, 2.1, **{**message, "kind": "recv"}, peer=0)],
    }
    first, second = matched_calls(steps)
    assert (first.name, first.seq, first.missing, first.began, first.met) == ("all_reduce", 1, [], 1.0, 1.4)
    assert (second.name, second.members, sorted(second.steps), second.began) == ("send", (0, 3), [0, 3], 1.9)


def test_who_never_came_is_missing_and_groups_count_for_themselves() -> None:
    pair = {"group": "pair", "members": [0, 1]}
    steps = {
        0: [step("barrier", 1, 1.0), step("barrier", 1, 2.0, 2.1, **pair)],
        1: [step("barrier", 1, 2.0, 2.1, **pair)],
    }
    world, group = matched_calls(steps)
    assert world.missing == [1, 2, 3]
    assert world.met == float("inf")
    assert group.missing == []


def test_a_receive_from_anyone_that_never_ended_is_nobodys() -> None:
    assert matched_calls({0: [step("recv", 1, 1.0, kind="recv", peer=None)]}) == []


def test_who_called_something_else_and_where() -> None:
    steps = {2: step("broadcast", 1, 1.0), 0: step("broadcast", 1, 1.5), 1: step("all_reduce", 1, 1.2, line="line 4")}
    steps[3] = step("recv", 1, 1.0, kind="recv", peer=0)
    matched = MatchedCall("all_reduce", "world", (0, 1, 2, 3), 1, steps)
    assert matched.others == {"broadcast": [0, 2]}
    assert matched.line == "line 4"
    assert MatchedCall("barrier", "world", (0, 1, 2, 3), 1, {0: step("barrier", 1, 1.0)}).line == ""


def test_a_matched_call_is_what_most_ranks_called_there() -> None:
    (met,) = matched_calls(
        {0: [step("all_reduce", 1, 1.0)], 1: [step("barrier", 1, 1.0)], 2: [step("barrier", 1, 1.0)]}
    )
    assert (met.name, met.others) == ("barrier", {"all_reduce": [0]})


def test_matched_calls_are_in_the_order_in_which_they_began() -> None:
    late = {"group": "pair", "members": [0, 1]}
    met = matched_calls(
        {0: [step("barrier", 1, 5.0, **late)], 2: [step("all_reduce", 1, 2.0)], 3: [step("gather", 2, 3.0)]}
    )
    assert [each.name for each in met] == ["all_reduce", "gather", "barrier"]


def test_what_follows_a_receive_from_anyone_that_never_ended_is_told() -> None:
    steps = {0: [step("recv", 1, 1.0, kind="recv", peer=None), step("barrier", 1, 2.0)]}
    assert [met.name for met in matched_calls(steps)] == ["barrier"]


def test_ranks_that_are_alone_in_groups_of_one_name_do_not_meet() -> None:
    met = matched_calls({rank: [step("barrier", 1, 1.0, group="own", members=[rank])] for rank in (0, 1)})
    assert [(each.members, sorted(each.steps)) for each in met] == [((0,), [0]), ((1,), [1])]


@pytest.mark.parametrize(
    ("receive", "missing"),
    [({}, []), ({"tag": 8}, [1, 0]), ({"first": 2}, [1, 0]), ({"peer": 2}, [1, 2]), ({"group": "pair"}, [1, 0])],
    ids=["the same", "another tag", "the next", "another sender", "another group"],
)
def test_a_message_is_one_of_a_sender_a_receiver_a_group_a_tag_and_a_number(
    receive: dict[str, Any], missing: list[int]
) -> None:
    def end(kind: str, peer: int, first: int = 1, **more: Any) -> CallRecord:
        return step(kind, first, 1.0, 2.0, **{"kind": kind, "peer": peer, "tag": 7, **more})

    met = matched_calls({0: [end("send", 1)], 1: [end("recv", **{"peer": 0, **receive})]})
    assert [rank for each in met for rank in each.missing] == missing
    assert all(each.name == "send" and each.seq in (1, receive.get("first")) for each in met)


def test_the_rings_of_sendrecv_are_counted_by_each_rank() -> None:
    steps = {
        0: [step("sendrecv", 4, 1.0, 1.5), step("sendrecv", 6, 2.0, 2.5)],
        1: [step("sendrecv", 9, 1.2, 1.5), step("barrier", 1, 1.7, 1.8), step("sendrecv", 11, 2.2, 2.5)],
    }
    rings = [met for met in matched_calls(steps) if met.name == "sendrecv"]
    assert [(met.seq, sorted(met.steps), met.began, met.met) for met in rings] == [
        (1, [0, 1], 1.0, math.inf),
        (2, [0, 1], 2.0, math.inf),
    ]


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
