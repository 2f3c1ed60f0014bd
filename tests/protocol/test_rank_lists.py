"""Lists of ranks as texts: every list comes back as it was, and common ones are short."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbcomm.protocol.rank_lists import read, written

RANKS = st.integers(0, 2000)
RUNS = st.builds(
    lambda first, number, step: [*range(first, first + number * step, step)], RANKS, RANKS, st.integers(1, 9)
)
PIECES = st.one_of(st.lists(RANKS, max_size=8), RUNS, RUNS.map(lambda run: run[::-1]))
"""What lists are made of: ranks in any order, runs up and runs down."""


@given(st.lists(PIECES, max_size=5))
def test_every_list_comes_back_in_its_order(pieces: list[list[int]]) -> None:
    ranks = [rank for piece in pieces for rank in piece]
    assert read(written(ranks)) == tuple(ranks)


@given(st.permutations(range(7)))
def test_an_order_is_kept(ranks: list[int]) -> None:
    assert read(written(ranks)) == tuple(ranks)


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([], ""),
        ([5], "5"),
        ([0, 1], "0,1"),
        ([0, 1, 2], "0-2"),
        (range(1024), "0-1023"),
        (range(1, 1024, 32), "1-993:32"),
        ([0, 1, 3, 5, 7], "0,1-7:2"),
        ([0, 1, 2, 4, 5, 6, 9], "0-2,4-6,9"),
        ([0, 1, 2, 4, 6], "0-2,4,6"),
        ([3, 2, 1, 0], "3-0"),
        ([2, 3, 4, 0, 1], "2-4,0,1"),
        ([9, 6, 3, 2, 1], "9-3:3,2,1"),
        ([0, 2, 1, 3], "0,2,1,3"),
        ([7, 7, 7], "7,7,7"),
    ],
)
def test_what_a_list_looks_like(ranks: list[int], text: str) -> None:
    assert written(ranks) == text
    assert read(text) == tuple(ranks)


@pytest.mark.parametrize("text", [",", "1,", "a", "-1", "1-", "1:2", "0-4:0", "0-4:", "0 - 4", "0-1-2", "1" * 10])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"{re.escape(repr(text))} is no list of ranks"):
        read(text)


def test_a_text_is_read_once() -> None:
    assert read("3-900:3") is read("3-900:3")
