"""How many bytes of a call are for which rank, whatever ways they take.

The way depends on the backend's algorithm, and no rank sees it. What a rank must give to each other one does not: a
reduction is counted as its two halves, of which each rank reduces one part and gives it to all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...cell_names import SPELLED
from ...short_repr import size_of
from .call_values import ROOTS


def of_call(name: str, members: Sequence[int], rank: int, asked: Mapping[str, Any], nbytes: int) -> list[int] | None:
    """Return the bytes that a rank gives to each member by a Communicator's method; None where that is not known.

    Args:
        name: the method's.
        members: the group's ranks.
        rank: this one.
        asked: its arguments by name.
        nbytes: what the rank brings.
    """
    size = len(members)
    if rank not in members:
        return None
    place = members.index(rank)
    if name == "sendrecv":
        to = asked.get("dst")
        return [nbytes * (each == to) for each in members]
    root = asked.get(ROOTS.get(name, ""), 0)
    items = asked.get("items", asked.get("data"))
    if name in ("scatter", "all_to_all") and isinstance(items, list | tuple) and len(items) == size:
        if name == "scatter" and rank != root:
            return [0] * size
        return [0 if other == place else size_of(item) for other, item in enumerate(items)]
    return _given(name, size, place, members.index(root) if root in members else 0, nbytes)


def of_torch(name: str, args: tuple[Any, ...], members: Sequence[int], rank: int, nbytes: int) -> list[int] | None:
    """Return the same of a call of a process group.

    Args:
        name: the call's.
        args: its arguments.
        members: the group's ranks.
        rank: this one.
        nbytes: what the rank brings.
    """
    if not args:  # a barrier may have none
        return None
    size, place = len(members), members.index(rank)
    if name == "all_to_all":
        return [0 if other == place else size_of(each) for other, each in enumerate(args[1])]
    if name == "all_to_all_single" and len(args) > 3 and args[3]:
        row = nbytes // max(1, sum(args[3]))
        return [0 if other == place else row * rows for other, rows in enumerate(args[3])]
    root = next((each.rootRank for each in args if hasattr(each, "rootRank")), 0)
    return _given(name, size, place, root, nbytes)


def _given(name: str, size: int, place: int, root: int, nbytes: int) -> list[int] | None:
    """Return what the rank at a place gives to each other, where all parts of its data are alike."""
    name = SPELLED.get(name, name)
    if name == "broadcast":
        each = nbytes if place == root else 0
    elif name == "scatter":
        each = nbytes // size if place == root else 0
    elif name in ("gather", "reduce"):
        return [nbytes if other == root and place != root else 0 for other in range(size)]
    elif name == "scan":
        return [nbytes if other > place else 0 for other in range(size)]
    elif name == "all_gather":
        each = nbytes
    elif name in ("reduce_scatter", "all_to_all"):
        each = nbytes // size
    elif name == "all_reduce":
        each = 2 * nbytes // size
    else:
        return None
    return [0 if other == place else each for other in range(size)]
