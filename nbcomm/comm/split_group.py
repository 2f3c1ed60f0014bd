"""The division of ranks into groups by color."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ..errors import CollectiveError
from .collective import collective
from .sharding import Sharding
from .transport.group_args import OutsideGroup, members_of

if TYPE_CHECKING:
    from .transport.group_args import Group


KEEPS_ORDER = "sort_ranks" in inspect.signature(dist.new_group).parameters
"""Whether this torch can give the ranks of a group another order than the ascending one."""


class SplitGroup(Sharding):
    """Groups that the ranks form by the color that each of them passes."""

    @collective
    def split_group(self, color: Any, key: float | None = None, *, group: Group = None) -> Any:
        """Divide a group: ranks that pass the same color form a group. Every rank of the *world* must call this.

        MPI's ``MPI_Comm_split``, as a function of the world's ranks, since torch makes groups on all ranks at once.

        Args:
            color: any hashable value that can be compared with the others' (numbers, texts, tuples of them); None to
                be in no group.
            key: the order within the group, smallest first; ranks that pass the same, or none at all, are numbered
                ascending.
            group: divide only this group; ranks outside it must call this too, with a group of their own, which is
                divided by itself, or with what `new_group` gave them: then they get None's answer.

        Returns:
            This rank's group, for ``group=``: a ``torch.distributed.ProcessGroup``; for None, a stand-in whose use
            raises.

        Raises:
            CollectiveError: a rank's color cannot be compared with the others'; or a key asks for another order than
                the ascending one, with torch up to 2.11. On every rank.

        >>> evens = split_group(rank % 2)  # doctest: +SKIP
        ... all_reduce(rank, group=evens)  # on rank 3 of 4
        4
        """
        asked = None if color is None or _is_outside(group) else (tuple(members_of(group)), color)
        said = self.all_gather((asked, self.rank if key is None else key), "object")
        members: dict[Any, list[int]] = {}
        try:
            for rank, (other, _) in enumerate(said):
                if other is not None:
                    members.setdefault(other, []).append(rank)
            colors = sorted(members)
        except TypeError as error:
            raise CollectiveError(
                f"split_group needs colors that are hashable and can be put in order: {error}."
            ) from error
        groups = [sorted(members[each], key=lambda rank: (said[rank][1], rank)) for each in colors]
        if not KEEPS_ORDER and any(ranks != sorted(ranks) for ranks in groups):
            raise CollectiveError(
                f"torch {torch.__version__} numbers the ranks of a group ascending, so key cannot order them. Leave it "
                "out, or install torch 2.12 or newer."
            )
        made: Any = OutsideGroup(())
        for ranks in groups:
            # Every rank makes every group, in the same order.
            new = dist.new_group(ranks) if ranks == sorted(ranks) else dist.new_group(ranks, sort_ranks=False)
            if self.rank in ranks:
                made = new
        return made


def _is_outside(group: Any) -> bool:
    """Return whether this rank is no member: it has no color then, but takes part, or the others would wait for it."""
    if isinstance(group, (OutsideGroup, int)):  # torch's value for it is a number
        return bool(group == dist.GroupMember.NON_GROUP_MEMBER)
    return hasattr(group, "get_coordinate") and group.get_coordinate() is None
