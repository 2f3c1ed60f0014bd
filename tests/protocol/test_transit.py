"""Calls on their way to the notebook: ranks that did the same send the same bytes, and each reads its own again."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from nbcomm.protocol import CallRecord, CollectiveState, Done, FromRank, MessageCount, PendingCall, StatusReply
from nbcomm.protocol.codec import decode_from_rank, encode, from_frames, to_frames
from nbcomm.protocol.rank_lists import written
from nbcomm.protocol.transit import OwnPart, SharedPart, Steps, apart, together

from ..growth import lines_run

IRREGULAR = written([rank for rank in range(64) if rank.bit_count() % 2])
STEPS = 512


def arrived(message: FromRank) -> FromRank:
    first, *others = to_frames(message)
    return from_frames(decode_from_rank(first), others)[0]


def call(seq: int, began: float, name: str = "all_reduce", ranks: str = "0-63", **more: Any) -> CallRecord:
    values = {"line": "line 2: all_reduce(x)", "nbytes": 16, "asked": began + 0.0001} | more
    return CallRecord(name, "collective", "0", ranks, seq, seq, began, began + 0.002, **values)


def cell(rank: int, *names: str, **more: Any) -> Done:
    """A rank's answer after calls of these names, at times of its own."""
    began = 1e9 + rank / 7
    steps = [call(seq, began + seq + rank / 1000, name, **more) for seq, name in enumerate(names, 1)]
    return Done(5, 0.5 + rank / 11, doing=CollectiveState({"0": len(steps)}), began=began, steps=steps)


CELLS: dict[str, list[Done]] = {
    "all_reduce": [cell(rank, "all_reduce") for rank in range(3)],
    "barrier": [cell(rank, "barrier", nbytes=0) for rank in range(3)],
    "loop": [cell(rank, *["all_reduce"] * STEPS) for rank in range(3)],
    "several": [cell(rank, *["all_reduce", "barrier", "gather"] * 5, asked=0.0) for rank in range(3)],
    "broadcast from rank 1": [cell(rank, "broadcast", nbytes=32 * (rank == 1)) for rank in range(3)],
    "one rank waited for long": [
        cell(rank, "all_reduce", line="line 2: dist.all_reduce(x)" * (rank == 2)) for rank in range(3)
    ],
    "no calls": [cell(rank) for rank in range(3)],
}


@pytest.mark.parametrize("what", CELLS)
def test_ranks_that_did_the_same_at_other_times_send_an_equal_frame(what: str) -> None:
    frames = [to_frames(done) for done in CELLS[what]]
    assert len({first for first, *_ in frames}) == 1
    assert len({own for _, own in frames}) == len(frames)


@pytest.mark.parametrize(
    "other",
    [
        cell(0, "all_reduce", "barrier"),
        cell(0, "barrier", "all_reduce", failed=True),
        cell(0, "barrier", "all_reduce", ranks="0-31"),
        cell(0, "barrier", "all_reduce", peer=1),
        cell(0, "barrier", "all_reduce", tag=1),
    ],
    ids=["another order", "failed", "another group", "another peer", "another tag"],
)
def test_ranks_that_did_something_else_do_not(other: Done) -> None:
    done = cell(0, "barrier", "all_reduce")
    assert to_frames(done)[0] != to_frames(other)[0]
    assert arrived(other) == other


@pytest.mark.parametrize("what", CELLS)
def test_each_rank_gets_its_own_calls_from_a_frame_that_it_shares(what: str) -> None:
    shared = decode_from_rank(to_frames(CELLS[what][0])[0])
    for _ in range(2):
        for done in CELLS[what]:
            assert from_frames(shared, [to_frames(done)[1], b"raw"]) == (done, [b"raw"])
    assert encode(shared) == to_frames(CELLS[what][0])[0], "it is as it was"


def test_each_different_call_is_there_once_without_what_is_one_ranks_own() -> None:
    steps = [call(1, 5.0), call(2, 6.0, "barrier", nbytes=0, line=""), call(3, 7.0)]
    doing, shared, own = apart(None, steps)
    bare = [CallRecord(name, "collective", "0", "0", 0, 0, 0.0, 0.0) for name in ("all_reduce", "barrier")]
    assert doing is None
    assert shared == SharedPart(["0-63"], bare, [0, 1, 0], [1, 2, 3], [1, 2, 3], [0, 0, 0])
    assert apart(None, [structs.replace(step, number=step.first + 4) for step in steps])[1] == structs.replace(
        shared, number=[5, 6, 7]
    )
    assert own is not None
    assert (own.nbytes, own.line, own.lines) == ([16, 0, 16], [0, 1, 0], ["line 2: all_reduce(x)", ""])
    assert [len(times) for times in (own.began, own.ended, own.asked)] == [24, 24, 24]


def test_times_that_are_all_0_are_not_sent() -> None:
    steps = [structs.replace(call(seq, 5.0), asked=0.0, ended=2.0 * (seq == 2)) for seq in (1, 2)]
    own = apart(None, steps)[2]
    assert own is not None
    assert [len(times) for times in (own.began, own.ended, own.asked)] == [16, 16, 0]


@pytest.mark.parametrize("values", [{"how": {"op": "sum"}}, {"before": ["1"]}, {"after": ["2"]}])
def test_a_call_with_values_is_told_from_all_others(values: dict[str, Any]) -> None:
    shared = apart(None, [call(1, 5.0), call(2, 6.0, **values), call(3, 7.0, **values), call(4, 8.0)])[1]
    assert shared is not None
    assert shared.which == [0, 1, 2, 0]


# ── members ─────────────────────────────────────────────────────────────────────────────────────────


def waiting(ranks: str, seq: int = 1) -> PendingCall:
    return PendingCall("collective", "all_reduce", "0", ranks, seq, "float32 (4,), sum", "line 3", 1e9)


def test_a_groups_members_travel_once_in_a_message() -> None:
    calls = [waiting(IRREGULAR, seq) for seq in range(9)]
    doing = CollectiveState(waits=calls, beside=calls[:1], lanes=calls[:2])
    steps = [call(seq, 1e9 + seq, ("barrier", "all_reduce")[seq % 2], IRREGULAR, tag=seq % 7) for seq in range(STEPS)]
    for message in (
        Done(5, doing=doing, steps=steps),
        Done(5, doing=doing),
        StatusReply(1, 4242, "running", 1e9, 5, 1000, 0, 0, doing=doing, steps=steps[:16]),
        StatusReply(1, 4242, "running", 1e9, 5, 1000, 0, 0, doing=doing),
        StatusReply(1, 4242, "running", 1e9, 5, 1000, 0, 0, steps=steps[:16]),
    ):
        assert b"".join(to_frames(message)).count(IRREGULAR.encode()) == 1
        assert arrived(message) == message


def test_groups_of_one_name_keep_their_members() -> None:
    steps = [call(1, 1.0, ranks="0,1"), call(1, 2.0, ranks="2,3"), call(2, 3.0, ranks="0,1"), call(1, 4.0, ranks="")]
    doing = CollectiveState(waits=[waiting("5"), waiting("0,1")], beside=[waiting("")], lanes=[waiting("7")])
    done = arrived(Done(5, doing=doing, steps=steps))
    assert isinstance(done, Done)
    assert done.doing == doing
    assert [step.ranks for step in done.steps] == ["0,1", "2,3", "0,1", ""]


def test_a_message_without_calls_has_no_more_than_before() -> None:
    idle = StatusReply(1, 4242, "idle", 1e9, None, 1000, 0, 0)
    assert to_frames(idle) == [encode(idle)]
    assert len(to_frames(Done(1, 0.5), [b"raw"])) == 3


# ── everything comes back ───────────────────────────────────────────────────────────────────────────

TEXTS = st.text(max_size=8)
TIMES = st.one_of(st.just(0.0), st.just(math.inf), st.floats(allow_nan=False))
NUMBERS = st.integers(0, 1 << 62)
VALUES = st.one_of(st.none(), st.lists(TEXTS, max_size=3))
CALLS = st.builds(
    CallRecord,
    name=st.sampled_from(["all_reduce", "send", "ünï"]),
    kind=st.sampled_from(["collective", "send"]),
    group=st.sampled_from(["", "0", "7"]),
    ranks=st.sampled_from(["", "0-63", IRREGULAR]),
    first=NUMBERS,
    last=NUMBERS,
    began=TIMES,
    ended=TIMES,
    failed=st.booleans(),
    peer=st.one_of(st.none(), st.integers(0, 3)),
    tag=st.integers(-1, 1),
    line=TEXTS,
    nbytes=NUMBERS,
    how=st.one_of(st.none(), st.dictionaries(TEXTS, NUMBERS, max_size=2)),
    before=VALUES,
    after=VALUES,
    asked=TIMES,
)
WAITS = st.lists(st.builds(waiting, TEXTS, NUMBERS), max_size=3)
DOINGS = st.builds(
    CollectiveState,
    st.just({"0": 3}),
    st.just([MessageCount("", 2, 7, 1)]),
    st.just([]),
    WAITS,
    TEXTS,
    beside=WAITS,
    lanes=WAITS,
)


@given(st.lists(CALLS, max_size=9), st.one_of(st.none(), DOINGS), TIMES, TIMES)
def test_an_answer_arrives_as_it_was(
    steps: list[CallRecord], doing: CollectiveState | None, began: float, seconds: float
) -> None:
    done = Done(5, seconds, doing=doing, began=began, steps=steps, notes=["a note"])
    first, own, *buffers = to_frames(done, [b"raw"])
    got, rest = from_frames(decode_from_rank(memoryview(first)), [memoryview(own), *buffers])
    assert (got, rest) == (done, [b"raw"])


@given(st.lists(CALLS, max_size=9), DOINGS)
def test_a_report_arrives_as_it_was(steps: list[CallRecord], doing: CollectiveState) -> None:
    reply = StatusReply(
        1, 4242, "running", 1e9, 5, 10**11, 0, 0, 2, doing, 9, steps, 5, 5, 4, pss=True, importing="sympy"
    )
    assert arrived(reply) == reply


def test_what_has_no_place_in_msgpack_is_replaced_here_too() -> None:
    done = arrived(Done(5, steps=[call(1, 1.0, line="half \ud800 line", how={"op": 1j})]))
    assert isinstance(done, Done)
    assert (done.steps[0].line, done.steps[0].how) == ("half ? line", {"op": "1j"})


# ── reading them ────────────────────────────────────────────────────────────────────────────────────


def test_they_are_read_as_a_list_is() -> None:
    made = cell(0, "all_reduce", "barrier", "gather")
    done = arrived(made)
    assert isinstance(done, Done)
    assert isinstance(done.steps, Steps)
    assert len(done.steps) == 3
    assert done.steps == made.steps
    assert done.steps != made.steps[1:]
    assert done.steps != 3
    assert [*done.steps] == made.steps
    assert (done.steps[-1], done.steps[1:]) == (made.steps[-1], made.steps[1:])
    assert repr(done.steps) == repr(made.steps)
    assert done.steps[0] is done.steps[0]


def test_taking_an_answer_costs_the_same_for_many_calls() -> None:
    def work(count: int) -> int:
        first, own = to_frames(cell(0, *["all_reduce"] * count))
        return lines_run(lambda: from_frames(decode_from_rank(first), [own]))

    assert work(STEPS) == work(1), "they are put together when somebody reads them"


# ── what does not belong together ───────────────────────────────────────────────────────────────────


def _own(message: Done) -> bytes:
    return bytes(to_frames(message)[1])


@pytest.mark.parametrize(
    "others",
    [[], [b""], [b"no times"], [bytes(16)], [_own(cell(0, "barrier", "barrier"))]],
    ids=["none", "empty", "a text", "zeros", "of more calls"],
)
def test_another_ranks_part_is_refused(others: list[bytes]) -> None:
    message = decode_from_rank(to_frames(cell(0, "barrier"))[0])
    with pytest.raises(msgspec.DecodeError):
        from_frames(message, others)


@pytest.mark.parametrize("ranks", ["0", "-1", "0-3", ""])
def test_a_group_that_is_not_described_is_refused(ranks: str) -> None:
    with pytest.raises(msgspec.DecodeError, match=r"^A message names a group that it does not describe: "):
        together(CollectiveState(waits=[waiting(ranks)]), SharedPart(), None)
    for field in ("beside", "lanes"):
        doing = structs.replace(CollectiveState(), **{field: [waiting(ranks)]})
        done = structs.replace(Done(5), doing=doing, shared=SharedPart())
        with pytest.raises(msgspec.DecodeError):
            from_frames(done, to_frames(Done(5))[1:])


@pytest.mark.parametrize("more", ["first", "last", "number", "nbytes", "line", "began", "ended", "asked"])
def test_columns_of_different_length_are_refused(more: str) -> None:
    shared = SharedPart([""], [call(1, 1.0, ranks="0")], [0], [1], [1], [1])
    own = OwnPart(nbytes=[1], line=[0], lines=[""])
    assert len(together(None, shared, own)[1]) == 1
    if more in {"first", "last", "number"}:
        shared = structs.replace(shared, **{more: [1, 2]})
    else:
        own = structs.replace(own, **{more: [0, 0] if more in {"nbytes", "line"} else bytes(16)})
    with pytest.raises(msgspec.DecodeError, match=r"^The two parts of a message are of different calls\.$"):
        together(None, shared, own)
