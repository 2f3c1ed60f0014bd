"""Refuses what can only hang: collectives that need a rank which the running cell does not run on.

The Communicator asks `check_present` itself, so that the name in the message is the one that was typed; everything
else that moves data (raw ``dist.*`` calls, functional collectives, DDP) meets it in its `process_group.RankGroup`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from operator import index

from .. import rank_spec as rank_sets
from ..errors import SubsetError
from ..rank_spec import named

_MOST = 1024
"""Ranks beyond this, which no world has, are not told in bits."""


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
    """What a rank says on the board of a group that it is about to make.

    The members are there as bits, too: a long list in words may be cut off.
    """
    with suppress(TypeError):  # they are no numbers: torch will say so
        members = [index(member) for member in members]
        bits = sum(1 << member for member in {*members} if 0 <= member < _MOST)
        return f"{bits:x}|new_group({members})"
    return f"|new_group({members})"


def members_in(text: str) -> list[int]:
    """The members of a group that a rank is about to make, from what it wrote of it."""
    bits = int(text.partition("|")[0] or "0", 16)
    return [rank for rank in range(bits.bit_length()) if bits >> rank & 1]


def agree(mine: tuple[int, Sequence[int]], other: tuple[int, Sequence[int]]) -> bool:
    """Whether two ranks may make groups of different members at the same place.

    Torch needs equal lists of those who would wait for each other, and of all who form a group with others: at one
    place all have the same name, by which they meet in the store. So only who is alone in its group, and who is in none
    with the other, may name whom it likes, as in ``new_subgroups(1, group=half)``.
    """
    (me, first), (peer, second) = mine, other
    if set(first) == set(second):
        return True
    if any(me in members and peer in members for members in (first, second)):
        return False
    return me not in first or peer not in second or len(first) == len(second) == 1
