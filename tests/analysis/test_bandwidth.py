"""How fast data moved."""

from __future__ import annotations

import pytest

from nbcomm.analysis.bandwidth import bandwidths, rates
from nbcomm.analysis.matching import MatchedCall
from nbcomm.protocol import CallRecord, rank_lists


def test_bandwidths_are_those_of_nccl_tests() -> None:
    assert bandwidths("all_reduce", 10**9, 1.0, 4) == (1.0, 1.5)
    assert bandwidths("all_gather", 10**9, 1.0, 4) == (4.0, 3.0)
    assert bandwidths("reduce_scatter", 4 * 10**9, 1.0, 4) == (4.0, 3.0)
    assert bandwidths("broadcast", 10**9, 2.0, 4) == (0.5, 0.5)
    assert bandwidths("all_to_all", 4 * 10**9, 1.0, 4) == (4.0, 3.0)
    assert bandwidths("gather", 10**9, 1.0, 4) == (4.0, 3.0)
    assert bandwidths("scatter", 4 * 10**9, 1.0, 4) == (4.0, 3.0)
    assert bandwidths("broadcast", 10**9, 1.0, 1) == (1.0, 1.0)
    assert bandwidths("broadcast", 10**9, 1.0, 0) == (0.0, 0.0)
    assert bandwidths("barrier", 0, 0.0, 4) == (0.0, 0.0)


def call(name: str, members: tuple[int, ...], nbytes: int, seconds: float, *, came: int | None = None) -> MatchedCall:
    """A call whose ranks arrive one after the other, and end so long after the last."""
    steps = {
        rank: CallRecord(
            name,
            "collective",
            "g",
            rank_lists.written(members),
            1,
            1,
            float(place),
            len(members) - 1 + seconds,
            nbytes=nbytes,
        )
        for place, rank in enumerate(members[:came])
    }
    return MatchedCall(name, "g", members, 1, steps)


NODES = {0: 0, 1: 0, 2: 1, 3: 1}


def test_what_crosses_nodes_is_told_beside_what_does_not() -> None:
    met = [
        call("all_reduce", (0, 1, 2, 3), 10**8, 0.5),  # 1.5 times the size
        call("broadcast", (0, 3), 10**8, 0.5),
        call("all_reduce", (2, 3), 10**9, 0.25),
        call("all_reduce", (0, 1, 2, 3), 0, 9.0),  # not one tensor
        call("all_reduce", (0, 1, 2, 3), 10**9, 9.0, came=3),
    ]
    assert rates(met, NODES) == "250 MB/s between nodes, 4.0 GB/s within one"
    assert rates(met[2:3], NODES) == "4.0 GB/s within one"


@pytest.mark.parametrize(
    ("met", "nodes"),
    [
        ([], NODES),
        ([call("all_reduce", (0, 1), 10**8, 0.5)], dict.fromkeys(range(4), 0)),
        ([call("all_reduce", (0, 3), 10**5, 0.5)], NODES),  # too little to tell
        ([call("all_reduce", (0, 3), 10**8, 0.0)], NODES),
    ],
)
def test_where_there_is_nothing_to_tell_nothing_is_told(met: list[MatchedCall], nodes: dict[int, int]) -> None:
    assert rates(met, nodes) == ""
