"""Bandwidths, which are those of NVIDIA's nccl-tests (doc/PERFORMANCE.md).

The algorithm bandwidth is size over time, and the bus bandwidth is that times a factor that makes it comparable with
the bandwidth of the links, for any number of ranks.
"""

from __future__ import annotations

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
