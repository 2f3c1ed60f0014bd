"""Where a step's time went."""

from __future__ import annotations

import math
from typing import Any

import pytest

from nbcomm.analysis.matching import matched_calls
from nbcomm.analysis.overlap import Spent, joined, overlap, shared, spent
from nbcomm.analysis.timeline import timeline

from .calls import step


def parts(steps: dict[int, list[Any]], seconds: float = 10.0) -> dict[int, Spent]:
    met = matched_calls(steps)
    windows = dict.fromkeys(steps, (100.0, 100.0 + seconds))
    return spent(timeline(1, windows, met, running=False), met, 100.0)


def two(*calls: tuple[float, float, float, float], name: str = "all_reduce") -> dict[int, list[Any]]:
    """Two ranks; of each call when they began, when it ended, and when they waited for it (0: at once)."""
    return {
        rank: [
            step(name, seq, 100 + call[rank], 100 + call[2], members=[0, 1], asked=call[3] and 100 + call[3])
            for seq, call in enumerate(calls, 1)
        ]
        for rank in (0, 1)
    }


def test_what_a_rank_waits_for_at_once_is_exposed() -> None:
    both = parts(two((2, 3, 5, 0)))
    assert both[0] == Spent(pytest.approx(7), 0, pytest.approx(2), pytest.approx(1))
    assert both[1] == Spent(pytest.approx(8), 0, pytest.approx(2), 0)
    assert overlap(both) == 0


def test_what_moves_before_a_rank_waits_for_it_is_hidden() -> None:
    both = parts(two((2, 2, 6, 5)))
    assert both[0] == Spent(pytest.approx(6), pytest.approx(3), pytest.approx(1), 0)
    assert overlap(both) == pytest.approx(0.75)


def test_who_begins_another_call_does_not_wait_in_the_first_one() -> None:
    """So DDP's buckets, for which C++ waits: only after the last one has begun."""
    both = parts(two((2, 2, 6, 0), (5, 5, 7, 0)))
    assert both[0] == Spent(pytest.approx(5), pytest.approx(3), pytest.approx(2), 0)
    assert overlap(both) == pytest.approx(0.6)


def test_what_nobody_waits_for_is_hidden_whole() -> None:
    both = parts({rank: [step("all_reduce", 1, 102, 106, members=[0, 1], asked=math.inf)] for rank in (0, 1)})
    assert both[0] == Spent(pytest.approx(6), pytest.approx(4), 0, 0)


def test_two_transfers_at_once_hide_their_time_once() -> None:
    both = parts(two((1, 1, 5, 5), (2, 2, 5, 5)))
    assert both[0].hidden == pytest.approx(4)


def test_without_a_transfer_there_is_no_overlap() -> None:
    assert overlap({0: Spent(1.0, 0.0, 0.0, 0.0)}) is None


def test_stretches_are_joined_and_shared() -> None:
    assert joined([]) == []
    assert joined([(1, 2), (2, 3), (5, 6)]) == [(1, 3), (5, 6)]
    assert shared([(0, 1), (2, 3), (4, 9)], [(0.5, 2.5), (5, 6), (7, 8)]) == pytest.approx(3)
    assert shared([], [(0, 1)]) == 0
