"""Calls as ranks tell them."""

from __future__ import annotations

from typing import Any

from nbcomm.protocol import CallRecord, rank_lists

WORLD = [0, 1, 2, 3]


def step(name: str, seq: int, began: float, ended: float = 0.0, **more: Any) -> CallRecord:
    values = {"kind": "collective", "group": "world", **more}
    ranks = rank_lists.written(values.pop("members", WORLD))
    return CallRecord(name=name, ranks=ranks, first=seq, last=seq, began=began, ended=ended, **values)


def met_at(*times: tuple[float, ...], name: str = "all_reduce") -> dict[int, list[CallRecord]]:
    """Each collective by the times at which the ranks came to it; it ends 0.1 s after the last came."""
    steps: dict[int, list[CallRecord]] = {rank: [] for rank in range(len(times[0]))}
    for seq, came in enumerate(times, 1):
        for rank, at in enumerate(came):
            steps[rank].append(step(name, seq, at, max(came) + 0.1, members=list(range(len(came)))))
    return steps
