"""The sentences for ranks whose calls of one collective do not match.

Ranks use them when it happens, and the explorer when a user breaks a collective there.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..rank_spec import rows_by_rank

STACK = "stack needs the same shape and dtype on every rank;\nmode='cat' joins uneven lengths, mode='list' anything"
CAT = "cat needs tensors that differ in their first dimension only;\nmode='list' takes anything"


def other_call(name: str, seq: int, where: str, ranks: Sequence[int], calls: Sequence[str]) -> str:
    """Say that ranks call torch's collectives differently, and that none of them continues.

    Args:
        name: the collective's name.
        seq: its number in the group, from 1.
        where: the group, in words.
        ranks: the ranks that have arrived, ascending.
        calls: the call of each of them.

    >>> print(other_call("barrier", 2, "the world", [0, 1], ["barrier", "all_reduce"]))
    barrier #2 of the world is not the same on all ranks:
      rank 0 called barrier
      rank 1 called all_reduce
    No rank continued past it.
    """
    parts = rows_by_rank(ranks, [f"called {call}" for call in calls])
    return f"{name} #{seq} of {where} is not the same on all ranks:\n{parts}\nNo rank continued past it."


def other_method(ranks: Sequence[int], calls: Sequence[str]) -> str:
    """Say that ranks are in different methods of a Communicator, found before any data moved."""
    parts = rows_by_rank(ranks, [f"called {call}" for call in calls])
    return f"The ranks are not in the same collective:\n{parts}\nNothing was moved."


def other_op(ranks: Sequence[int], calls: Sequence[str]) -> str:
    """Say that ranks called one reduction with different ops, roots or kinds."""
    parts = rows_by_rank(ranks, [f"called {call}" for call in calls])
    return f"The ranks called one reduction in different ways:\n{parts}\nNothing was moved."


def other_data(path: str, ranks: Sequence[int], data: Sequence[str]) -> str:
    """Say that the data that ranks passed to one reduction differs at a place in it."""
    same = "Pass the same structure, shapes and dtypes on every rank."
    return f"The ranks passed data that differs at {path}:\n{rows_by_rank(ranks, data)}\n{same}"


def not_joinable(path: str, ranks: Sequence[int], data: Sequence[str], remedy: str) -> str:
    """Say that ranks passed data that cannot be joined; the remedy is `STACK` or `CAT`."""
    return f"The ranks passed data that cannot be joined at {path}:\n{rows_by_rank(ranks, data)}\n{remedy}."
