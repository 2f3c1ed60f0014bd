"""What it costs that every collective is recorded, and compared with the other ranks' before data moves."""

from __future__ import annotations

from typing import Any

import nbcomm

from .rows import Row

_SIZES = {"8 B": 2, "1 kB": 256, "1 MB": 262_144}
_TARGET = 1.05


def measure(rounds: int, *, full: bool) -> list[Row]:
    """An all_reduce through the groups that cells see against one through torch's own, on the same connections.

    Between nodes, a call is compared by a round trip of messages; both nodes are on this machine. Nothing is promised
    of that, so it has no target.
    """
    rows = []
    for n, nodes in ((2, 1), (4, 1), *(((8, 1),) if full else ()), (2, 2)):
        with nbcomm.start(n, nodes=nodes) as session:
            for size, numel in _SIZES.items():
                ours, theirs = session.call(_both, numel, rounds)[0]
                figures = f"{ours * 1e6:.0f} µs, torch's own {theirs * 1e6:.0f} µs"
                what = f"all_reduce of {size}, {n} ranks{' on 2 nodes' if nodes > 1 else ''} / torch's own"
                rows.append(Row(what, figures, ours / theirs, _TARGET if nodes == 1 else None))
            if nodes > 1:
                median = max(session.call(_new_groups, rounds))
                rows.append(Row(f"new_group, {n} ranks on {nodes} nodes", f"{median * 1e3:.1f} ms"))
    return rows


def _new_groups(rounds: int) -> float:
    """Median of the making of a group of all ranks in seconds, on this rank."""
    import statistics
    import time

    import torch.distributed as dist

    samples = []
    for _ in range(rounds):
        dist.barrier()
        began = time.perf_counter()
        made = dist.new_group()
        samples.append(time.perf_counter() - began)
        dist.destroy_process_group(made)
    return statistics.median(samples)


def _both(numel: int, rounds: int) -> tuple[float, float]:
    """Medians of a call in seconds, on this rank; batches in turn, so that a busy moment hits both."""
    import statistics
    import time

    import torch
    import torch.distributed as dist

    recorded: Any = dist.group.WORLD
    work: Any = torch._C._distributed_c10d.Work
    watched = work.wait
    ways = (recorded, watched), (recorded._inner, watched.__wrapped__)
    tensor = torch.zeros(numel)
    samples: tuple[list[float], list[float]] = [], []
    try:
        for _ in range(rounds):
            for kept, (group, work.wait) in zip(samples, ways, strict=True):
                for _ in range(20):
                    began = time.perf_counter()
                    dist.all_reduce(tensor, group=group)
                    kept.append(time.perf_counter() - began)
    finally:
        work.wait = watched
    return statistics.median(samples[0]), statistics.median(samples[1])
