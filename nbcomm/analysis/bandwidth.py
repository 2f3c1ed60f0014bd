"""Bandwidths, which are those of NVIDIA's nccl-tests (doc/PERFORMANCE.md).

The algorithm bandwidth is size over time, and the bus bandwidth is that times a factor that makes it comparable with
the bandwidth of the links, for any number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .matching import MatchedCall

_ENOUGH = 10**6
"""Bytes on a rank that must have moved: what is less tells how long a message takes, and not how fast data moves."""

_TOTAL = ("all_gather", "all_gather_into_tensor", "gather")
"""The collectives whose size is what a rank has at the end: every rank's data."""


def bandwidths(name: str, nbytes: int, seconds: float, n: int) -> tuple[float, float]:
    """Return the algorithm and bus bandwidth in GB/s (10⁹ bytes), by nccl-tests' definitions.

    Args:
        name: the collective's name.
        nbytes: the bytes that each rank brings.
        seconds: the duration of the transfer after all ranks had arrived.
        n: the number of ranks.

    >>> bandwidths("all_reduce", 10**9, 1.0, 4)
    (1.0, 1.5)
    """
    if seconds <= 0 or n < 1:
        return 0.0, 0.0
    size = nbytes * n if name in _TOTAL else nbytes
    algorithm = size / seconds / 1e9
    factor = 1.0
    if name == "all_reduce":
        factor = 2 * (n - 1) / n
    elif name.startswith(("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")):
        factor = (n - 1) / n
    return algorithm, algorithm * factor


def rates(met: Sequence[MatchedCall], nodes: Mapping[int, int]) -> str:
    """Say how fast a cell's calls have moved data between nodes, and within them: the mean bus bandwidth of each.

    Args:
        met: the matched calls; those that bring one tensor count.
        nodes: the node of each rank.

    Returns:
        "0.31 GB/s between nodes, 2.1 GB/s within one"; empty where the world has one node, or little was moved.
    """
    if len(set(nodes.values())) < 2:
        return ""
    told = []
    for where, apart in (("between nodes", True), ("within one", False)):
        bytes_moved, size, seconds = 0.0, 0, 0.0
        for call in met:
            took = call.ended - call.met
            if call.missing or not call.nbytes or took <= 0 or len(call.members) < 2:
                continue
            if (len({nodes.get(rank) for rank in call.members}) > 1) is apart:
                bytes_moved += bandwidths(call.name, call.nbytes, 1.0, len(call.members))[1] * 1e9
                size += call.nbytes
                seconds += took
        if size >= _ENOUGH:
            told.append(f"{rate(bytes_moved / seconds)} {where}")
    return ", ".join(told)


def rate(speed: float) -> str:
    """Write bytes a second with at least two digits.

    >>> rate(2.14e9), rate(312.4e6), rate(31.2e9), rate(45.1e3), rate(0)
    ('2.1 GB/s', '312 MB/s', '31 GB/s', '45 kB/s', '0 B/s')
    """
    for unit, factor in (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)):
        if speed >= 0.9995 * factor:
            return f"{speed / factor:.{int(speed < 9.95 * factor)}f} {unit}"
    return f"{speed:.0f} B/s"
