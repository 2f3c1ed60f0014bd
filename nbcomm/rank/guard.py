"""Refuses what can only hang: collectives that need a rank which the running cell does not run on.

The Communicator asks `check_present` itself, so that the name in the message is the one that was typed; everything
else that moves data (raw ``dist.*`` calls, functional collectives, DDP) meets it in its `group.RankGroup`.
"""

from __future__ import annotations

from collections.abc import Sequence

from .. import ranks as rank_sets
from ..errors import SubsetError
from ..ranks import named


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
