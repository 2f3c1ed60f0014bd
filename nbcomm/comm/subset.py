"""The refusal of what can only hang: collectives that need a rank which does not run the current cell.

The Communicator calls `check_present` itself, so that the message has the name that was typed. Everything else that
moves data (raw ``dist.*`` calls, functional collectives, DDP) is checked in its `process_group.RankGroup`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from operator import index

from .. import rank_spec as rank_sets
from ..errors import SubsetError
from ..rank_spec import named

_MOST = 1024
"""Ranks beyond this, which no world has, are not encoded as bits."""


def check_present(what: str, members: Sequence[int], cell_ranks: Sequence[int], world_size: int) -> None:
    """Refuse a collective over ``members`` if one of them does not run this cell.

    Args:
        what: the name of the call, for the message.
        members: the group's global ranks.
        cell_ranks: the global ranks that run this cell.
        world_size: to call the world by its name.

    Raises:
        SubsetError: a member is absent.
    """
    absent = sorted(set(members) - set(cell_ranks))
    if not absent:
        return
    over = "the world" if len(members) == world_size else f"a group of {named(members)}"
    running = list(cell_ranks)
    raise SubsetError(
        f"{what} over {over} needs {named(absent)} too, but this cell runs on {named(running)} only, so it would never "
        f"end. Run the cell on {named(members)}, or pass group=g, with g = new_group({running}) made earlier in a cell "
        "on all ranks."
    )


def check_peer(what: str, peer: int, cell_ranks: Sequence[int]) -> None:
    """Refuse a message to or from a rank that does not run this cell.

    Raises:
        SubsetError: the peer is absent.
    """
    if peer not in cell_ranks:
        raise SubsetError(
            f"{what} rank {peer} needs rank {peer} to take part, but this cell runs on {named(list(cell_ranks))} only. "
            f"Run the cell on rank {peer} too: -r {rank_sets.fold([*cell_ranks, peer])}."
        )


def new_group(members: Sequence[int]) -> str:
    """Return what a rank writes on the board about a group that it is about to make.

    The members are also encoded as bits: a long list in words may be cut off.
    """
    with suppress(TypeError):  # they are not numbers: torch will say so
        members = [index(member) for member in members]
        bits = sum(1 << member for member in {*members} if 0 <= member < _MOST)
        return f"{bits:x}|new_group({members})"
    return f"|new_group({members})"


def members_in(text: str) -> list[int]:
    """Return the members of a group that a rank is about to make, from what it wrote on the board."""
    bits = int(text.partition("|")[0] or "0", 16)
    return [rank for rank in range(bits.bit_length()) if bits >> rank & 1]


def agree(mine: tuple[int, Sequence[int]], other: tuple[int, Sequence[int]]) -> bool:
    """Return whether two ranks may make groups of different members at the same position.

    Torch needs equal lists from ranks that would wait for each other, and from all that form a group with others: at
    one position all groups have the same name, by which the members meet in the store. So the lists may differ only if
    a rank is alone in its group, or is in no group with the other, as in ``new_subgroups(1, group=half)``.
    """
    (me, first), (peer, second) = mine, other
    if set(first) == set(second):
        return True
    if any(me in members and peer in members for members in (first, second)):
        return False
    return me not in first or peer not in second or len(first) == len(second) == 1
