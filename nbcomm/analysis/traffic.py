"""How many bytes went from each rank to each other one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..protocol import CallRecord


def traffic(steps: Mapping[int, Sequence[CallRecord]]) -> dict[tuple[int, int], int]:
    """Return the bytes that each rank gave to each other, by pairs of ranks.

    Args:
        steps: the ranks' calls, traced. A collective counts what a rank must give to each other, whatever ways it
            takes: a reduction counts as its two halves.
    """
    found: dict[tuple[int, int], int] = {}
    for rank, own in steps.items():
        for step in own:
            for to, nbytes in _given(step):
                if to is not None and to != rank and nbytes:
                    found[rank, to] = found.get((rank, to), 0) + nbytes
    return found


def _given(step: CallRecord) -> Iterable[tuple[int | None, int]]:
    if step.kind == "send":
        return [(step.peer, step.nbytes)]
    return [] if step.gave is None else zip(step.members, step.gave, strict=True)
