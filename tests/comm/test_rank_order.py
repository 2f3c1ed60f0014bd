"""Blocks and functions in turn, or on one rank only."""

from __future__ import annotations

import time

import pytest

from nbcomm.errors import CollectiveError

from ..worlds import worlds_of_a_module  # noqa: F401  # the fixture `worlds`


@pytest.mark.parametrize("first", [0, 1, 2])
def test_a_rank_comes_first_and_all_leave_together(worlds, first):
    def check(comm, first):
        with comm.rank_first(first):
            if comm.rank == first:
                time.sleep(0.1)
            entered = time.monotonic()
            time.sleep(0.02 * comm.rank)
            ended = time.monotonic()
        return entered, ended, time.monotonic()

    results = worlds[3].run(check, first)
    assert min(entered for rank, (entered, _, _) in enumerate(results) if rank != first) >= results[first][1]
    assert min(left for _, _, left in results) >= max(ended for _, ended, _ in results)


def test_a_failure_of_the_first_leaves_nobody_waiting(worlds):
    def check(comm):
        with comm.rank_first(1):
            if comm.rank == 1:
                raise ValueError("no disk")

    results = worlds[3].run(check, fails=True)
    assert results[1].kind is ValueError
    assert "rank 1 failed in its block of rank_first: ValueError: no disk" in results[0].text
    assert worlds[3].run(lambda comm: comm.all_reduce(1)) == [3] * 3


def test_a_call_that_is_refused_in_the_block_is_the_failure_that_is_told(worlds):
    def check(comm):
        with comm.rank_zero_first():
            comm.broadcast(1, src=99)

    first, *others = worlds[3].run(check, fails=True)
    assert "src=99 is not a rank of the group" in first.text
    for other in others:
        assert "rank 0 failed in its block of rank_zero_first: CollectiveError: src=99" in other.text


def test_rank_zero_first_is_a_rank_first(worlds):
    def check(comm):
        with comm.rank_zero_first() if comm.rank else comm.rank_first(0):
            return comm.rank

    assert worlds[2].run(check) == [0, 1]


def test_one_rank_only(worlds):
    def check(comm):
        calls = []

        @comm.one_rank_only
        def bare(x):
            calls.append(x)
            return x

        @comm.one_rank_only(1, with_barrier=True)
        def slow(x):
            """Take its time."""
            time.sleep(0.1)
            return time.monotonic() + x

        value = slow(0)
        return bare(7), calls, value, time.monotonic(), slow.__doc__

    results = worlds[3].run(check)
    assert [result[:2] for result in results] == [(7, [7]), (None, []), (None, [])]
    ended = results[1][2]
    assert [result[2] for result in results] == [None, ended, None]
    assert all(after >= ended for *_, after, _ in results)
    assert results[0][4] == "Take its time."


def test_a_failing_function_is_told_to_all_if_they_wait(worlds):
    def check(comm):
        def fail():
            raise ValueError("full")

        try:
            comm.one_rank_only(2)(fail)()
        except ValueError as error:
            own = str(error)
        else:
            own = None
        try:
            comm.one_rank_only(2, with_barrier=True)(fail)()
        except (ValueError, CollectiveError) as error:
            return own, type(error), str(error)

    results = worlds[3].run(check)
    assert [result[0] for result in results] == [None, None, "full"]
    assert results[2][1:] == (ValueError, "full")
    assert all(
        result[1] is CollectiveError and "rank 2 failed in fail(): ValueError: full" in result[2]
        for result in results[:2]
    )


def test_ranks_that_are_not_there_are_refused(worlds):
    def check(comm):
        with pytest.raises(CollectiveError, match="rank=7 is not a rank of the group"):
            comm.rank_first(7)
        with pytest.raises(CollectiveError, match="rank=-1 is not a rank"):
            comm.one_rank_only(-1)

    worlds[2].run(check)


@pytest.mark.parametrize("size", [1, 3])
def test_flags_of_all_ranks(worlds, size):
    def check(comm):
        import torch

        last = comm.rank == comm.world_size - 1
        return (
            comm.any_rank(last),
            comm.all_ranks(last),
            comm.any_rank(False),
            comm.all_ranks(torch.tensor(1.0)),
            comm.any_rank([]),
        )

    assert worlds[size].run(check) == [(True, size == 1, False, True, False)] * size
