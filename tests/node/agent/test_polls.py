"""The questions that the agent asks in the notebook's name: what their headers say, and to whom they go."""

from __future__ import annotations

import pytest

from nbcomm.node.agent.polls import Polls
from nbcomm.protocol import Poll, StatusRequest
from nbcomm.protocol.codec import decode_header, decode_to_rank, encode
from nbcomm.protocol.parcels import Letter
from nbcomm.protocol.streams import Header


def told(polls: Polls, rank: int, **header: int) -> None:
    """Note what the notebook has sent to a rank."""
    last = Header(**{"epoch": 9, "life": 5, "number": 0, "after": 0, "heard": 0, **header})
    polls.note(Letter(rank, encode(last), [b"a message"]))


def asked(polls: Polls, *ranks: int) -> dict[int, Header]:
    letters = list(polls.letters(Poll(7), ranks))
    assert all(letter.asks and decode_to_rank(letter.frames[0]) == StatusRequest(7) for letter in letters)
    return {letter.rank: decode_header(letter.header) for letter in letters}


@pytest.mark.parametrize(
    ("last", "after"), [({"number": 4, "after": 3}, 4), ({"number": 0, "after": 6}, 6)], ids=["message", "word"]
)
def test_a_question_comes_behind_what_was_sent_last(last: dict[str, int], after: int) -> None:
    polls = Polls()
    told(polls, 3, **last, heard=8, settled=2)
    assert asked(polls, 3) == {3: Header(epoch=9, life=5, number=0, after=after, heard=8, settled=2)}


def test_each_rank_has_its_own_header_and_all_the_same_frame() -> None:
    polls = Polls()
    for rank in range(3):
        told(polls, rank, heard=rank)
    assert {rank: header.heard for rank, header in asked(polls, 0, 1, 2).items()} == {0: 0, 1: 1, 2: 2}
    assert len({id(letter.frames[0]) for letter in polls.letters(Poll(7), range(3))}) == 1


def test_the_last_header_counts() -> None:
    polls = Polls()
    told(polls, 0, heard=1)
    told(polls, 0, heard=2)
    assert asked(polls, 0)[0].heard == 2


def test_a_rank_to_which_nothing_was_sent_is_not_asked() -> None:
    polls = Polls()
    told(polls, 0)
    told(polls, 1)
    assert list(asked(polls, 0, 1, 2)) == [0, 1]
    polls.forget(1)
    polls.forget(2)
    assert list(asked(polls, 0, 1, 2)) == [0]
    polls.clear()
    assert asked(polls, 0, 1, 2) == {}


def test_a_header_that_is_none_costs_its_own_rank_only() -> None:
    polls = Polls()
    polls.note(Letter(0, b"of a newer notebook", []))
    told(polls, 1)
    assert list(asked(polls, 0, 1)) == [1]
