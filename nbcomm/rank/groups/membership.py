"""Which groups each rank has, exchanged before they are re-formed.

Some members of a group may not have it: one may be a new process, which is to join; another's cell may have called
`destroy_process_group`. A rank that formed such a group would wait for a member that never joins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

import msgspec

from ...protocol import rank_lists
from ...torch_internals import process_groups

if TYPE_CHECKING:
    from .rendezvous import StoreClient

_KEY = "nbcomm/groups/"


class Groups(msgspec.Struct, array_like=True, frozen=True):
    """The groups of one rank: how many it has named, and by name their members (see `rank_lists`) and backend."""

    count: int
    named: dict[str, tuple[str, str]]


def exchange(store: StoreClient, rank: int, ranks: Collection[int]) -> dict[int, Groups]:
    """Write which groups this rank has, and read those of all writers.

    Args:
        store: the store of the generation that begins.
        rank: this rank; one that is not among ``ranks`` only reads.
        ranks: the writers; all of them must call this.

    Returns:
        Their groups, by rank.
    """
    if rank in ranks:
        known = process_groups.known_groups()
        named = {name: (rank_lists.written(members), backend) for _, name, members, backend in known}
        store.set(f"{_KEY}{rank}", msgspec.json.encode(Groups(process_groups.group_count(), named)))
    told = store.multi_get([f"{_KEY}{other}" for other in ranks])
    return {other: msgspec.json.decode(word, type=Groups) for other, word in zip(ranks, told, strict=True)}


def without(membership: dict[int, Groups], name: str, members: Iterable[int]) -> list[int]:
    """Return the members of a group that have written their groups, and do not have this one."""
    return [member for member in members if member in membership and name not in membership[member].named]
