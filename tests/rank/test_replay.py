"""What a rank keeps for a notebook that comes later."""

from __future__ import annotations

from typing import Any

from nbcomm.protocol import Done, FromRank, Output, Resume, Text
from nbcomm.protocol.codec import decode_from_rank, encode
from nbcomm.rank.replay import Replay


def said(text: str, run: int = 5) -> list[Any]:
    return [encode(Output(run, [Text("stdout", text)]))]


def replayed(history: Replay) -> list[FromRank]:
    return [decode_from_rank(frames[0]) for frames in history.replay()]


def test_nothing_is_repeated_before_a_request() -> None:
    history = Replay()
    history.add(said("early"))
    assert history.replay() == []


def test_a_request_is_repeated_in_order_with_its_answer() -> None:
    history = Replay()
    history.begin(5, "0,2")
    history.add(said("a"))
    history.add(said("b"))
    history.add([encode(Done(5)), b"raw"], last=True)
    assert replayed(history) == [
        Resume(5, "0,2"),
        Output(5, [Text("stdout", "a")]),
        Output(5, [Text("stdout", "b")]),
        Done(5),
    ]
    assert history.replay()[-1][1] == b"raw"
    assert replayed(history)  # as often as it is asked


def test_what_has_been_heard_is_let_go_and_not_before() -> None:
    history = Replay()
    history.begin(5, "0")
    history.seen(5)  # it has not ended
    assert history.replay()
    history.add([encode(Done(5))], last=True)
    history.seen(4)
    assert history.replay()
    history.seen(5)
    assert history.replay() == []


def test_the_next_request_takes_its_place() -> None:
    history = Replay()
    history.begin(5, "0")
    history.add(said("old"))
    history.begin(6, "0")
    assert replayed(history) == [Resume(6, "0")]


def test_beyond_the_limit_the_oldest_goes_and_it_says_so() -> None:
    history = Replay(most=200)
    history.begin(5, "0")
    for number in range(100):
        history.add(said(f"line {number}\n"))
    first, gap, *kept = replayed(history)
    assert first == Resume(5, "0")
    assert isinstance(gap, Output)
    assert gap.items == [Text("stderr", "(earlier output is not kept)\n")]
    assert kept[-1] == Output(5, [Text("stdout", "line 99\n")])
    assert 1 < len(kept) < 20
    history.add(said("x" * 1000))
    assert len(replayed(history)) == 3  # one that is larger by itself is kept all the same


def test_what_an_answer_carries_counts_and_the_answer_stays() -> None:
    history = Replay(most=1000)
    history.begin(5, "0")
    history.add(said("x" * 500))
    history.add([encode(Done(5)), memoryview(b"v" * 5000)], last=True)
    assert replayed(history) == [
        Resume(5, "0"),
        Output(5, [Text("stderr", "(earlier output is not kept)\n")]),
        Done(5),
    ]
