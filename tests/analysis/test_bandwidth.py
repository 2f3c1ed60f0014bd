"""How fast data moved."""

from __future__ import annotations

from nbcomm.analysis.bandwidth import bandwidths


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
