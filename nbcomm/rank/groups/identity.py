"""The identity of a process group: its rank, size and names, as the group itself gives them to Python and C++."""

from __future__ import annotations

import torch.distributed as dist

from ...torch_internals import process_groups
from ...torch_internals.gloo_sockets import GlooSockets


class Identity(dist.ProcessGroup):
    """A process group that gives its own identity.

    C++ would ask a default backend that all groups share: for the name in any version of torch, from 2.14 on for the
    rank and the size, too. Instead, it calls these methods.

    Args:
        rank: this rank's number in the group.
        members: the global ranks, in group order.
        name: torch's name of the group.
        gloo: has the default backend.
    """

    def __init__(self, rank: int, members: list[int], name: str, gloo: GlooSockets) -> None:
        # Without a store: torch up to 2.13 makes no group of a class written in Python with one.
        super().__init__(rank, len(members))  # type: ignore[call-arg]  # the stubs lack it
        self.members = members
        self.called = name
        self._place = rank, len(members)
        self._description = "undefined"
        process_groups.give_default(self, gloo)

    def getRank(self) -> int:  # noqa: N802 - torch's C++ name
        """Return this rank's number in the group."""
        return self._place[0]

    def getSize(self) -> int:  # noqa: N802 - torch's C++ name
        """Return how many members the group has."""
        return self._place[1]

    def getGroupName(self) -> str:  # noqa: N802 - torch's C++ name
        """Return torch's name of the group."""
        return self.called

    def setGroupName(self, name: str) -> None:  # noqa: N802 - torch's C++ name
        """Set torch's name of the group."""
        self.called = name

    def getGroupDesc(self) -> str:  # noqa: N802 - torch's C++ name
        """Return the group's description, as its maker gave it."""
        return self._description

    def setGroupDesc(self, description: str) -> None:  # noqa: N802 - torch's C++ name
        """Set the group's description."""
        self._description = description

    # Python asks here, without going through C++.
    rank, size = getRank, getSize
    group_name, group_desc = property(getGroupName), property(getGroupDesc)
