"""A plan in words: for terminals, screen readers, and readers of a saved notebook as text."""

from __future__ import annotations

from collections.abc import Sequence

from ..rank_spec import named
from .plan import Cell, Plan


def describe(plan: Plan) -> str:
    """Write a plan as lines: the call, its law, and for each rank what it had and what it got.

    >>> from .plan import plan
    >>> print(describe(plan("all_reduce", [1, 2])))
    all_reduce · sum: out = sum over all ranks r of data[r], on every rank
    rank 0: 1 → 3
    rank 1: 2 → 3
    """
    lines = [f"{plan.title}: {plan.law}", *plan.notes]
    for rank in plan.ranks:
        if rank in plan.missing:
            lines.append(f"rank {rank}: did not arrive")
        elif plan.name == "barrier":
            lines.append(f"rank {rank}: arrived after {plan.arrivals.get(rank, 0.0):.2f} s")
        else:
            lines.append(f"rank {rank}: {_row(plan.before[rank])} → {_row(plan.after[rank])}")
    return "\n".join(lines)


def lateness(plan: Plan, *, least: float = 0.05) -> str:
    """Say which ranks arrived last and how late; return an empty text if the delay is short.

    Args:
        plan: a plan with arrivals.
        least: the shortest delay that is reported, in seconds.
    """
    if len(plan.arrivals) < 2:
        return ""
    first, last = min(plan.arrivals.values()), max(plan.arrivals.values())
    if last - first < least:
        return ""
    late = [rank for rank, at in plan.arrivals.items() if last - at < least / 2]
    return f"{named(late)} came last, {last - first:.2f} s after the first."


def _row(cells: Sequence[Cell]) -> str:
    return " | ".join(cell.text for cell in cells) or "–"
