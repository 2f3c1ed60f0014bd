"""What ``group=`` may be, and its members."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch.distributed as dist

from ...errors import CollectiveError
from ...rank_spec import named
from ...torch_internals import process_groups

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from typing_extensions import Self

    Group: TypeAlias = "dist.ProcessGroup | DeviceMesh | OutsideGroup | None"


class OutsideGroup(int):
    """What ``new_group`` returns on a rank that is not a member.

    For torch it is the number that torch itself returns then (its functions then do nothing); for users it knows who
    the members are.
    """

    ranks: tuple[int, ...]

    def __new__(cls, ranks: Sequence[int]) -> Self:  # noqa: D102  # the class's docstring
        made = super().__new__(cls, dist.GroupMember.NON_GROUP_MEMBER)
        made.ranks = tuple(ranks)
        return made

    def __repr__(self) -> str:
        return f"<a group of {named(self.ranks)}, of which this rank is no member>"


def resolve(group: Any) -> dist.ProcessGroup | None:
    """Return the process group of ``group``; None for the world.

    Raises:
        CollectiveError: it is no group, one that this rank is not in, or one that a cell has destroyed.
    """
    if group is None or isinstance(group, dist.ProcessGroup):
        if not process_groups.is_known(group):
            raise CollectiveError(
                "This cell has destroyed the world's process groups (dist.destroy_process_group); the next cell gets "
                "new ones."
                if group is None
                else "This group does not exist any more: dist.destroy_process_group was called "
                "for it, or for the whole world. Create it again with new_group."
            )
        if process_groups.is_strange():
            raise CollectiveError(
                "This cell replaced the world's process group with its own (dist.init_process_group), which nbcomm's "
                "functions do not use: call it through torch.distributed. The next cell has the world's process group "
                "again."
            )
        return group
    if isinstance(group, OutsideGroup):
        raise CollectiveError(
            f"Rank {dist.get_rank()} is not a member of this group: its members are {named(group.ranks)}. "
            f"Call it on them only: if rank in {list(group.ranks)}: …"
        )
    if group == dist.GroupMember.NON_GROUP_MEMBER:
        raise CollectiveError(
            f"Rank {dist.get_rank()} is not a member of this group. Call it on its members only. For a "
            "group from nbcomm's new_group, this message lists the members."
        )
    if hasattr(group, "get_group") and hasattr(group, "ndim"):
        return _of_mesh(group)
    raise CollectiveError(
        f"group= takes a process group (from new_group or torch.distributed) or a one-dimensional DeviceMesh, "
        f"not {group!r}."
    )


def lane_of(group: dist.ProcessGroup | None) -> Any:
    """Return the key of the lane of a group's collectives."""
    return dist.group.WORLD if group is None else group


def _of_mesh(mesh: DeviceMesh) -> dist.ProcessGroup:
    if mesh.ndim != 1:
        names = ", ".join(f"mesh[{name!r}]" for name in mesh.mesh_dim_names or ())
        raise CollectiveError(
            f"This DeviceMesh has {mesh.ndim} dimensions, and a collective runs along one. "
            f"Pass {names or 'mesh.get_group(dim)'} as group=."
        )
    if mesh.get_coordinate() is None:
        raise CollectiveError(
            f"Rank {dist.get_rank()} is not in this DeviceMesh: {named(mesh.mesh.flatten().tolist())}."
        )
    return mesh.get_group()


def members_of(group: Any) -> list[int]:
    """Return the global ranks of a group, in its own order; also on a rank outside it."""
    if isinstance(group, OutsideGroup):
        return list(group.ranks)
    return list(dist.get_process_group_ranks(resolve(group)))
