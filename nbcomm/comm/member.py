"""A rank's place in the world: its numbers, its device, its groups, and what needs no collective."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from .. import rank_spec as rank_sets
from ..errors import CollectiveError
from ..rank_spec import named
from ..torch_internals import process_groups
from . import subset
from .algorithms.gradient_sync import pause_gradient_sync
from .transport import pytrees
from .transport.async_lanes import AsyncLanes, Handle
from .transport.exchange import GroupChannel
from .transport.group_args import OutsideGroup, lane_of, members_of, resolve

if TYPE_CHECKING:
    from .transport.group_args import Group


class Member:
    """One rank of the world; `Communicator` adds the collectives.

    Attributes:
        cell_ranks: the ranks that run the current cell, or None for all. A collective that needs another rank is
            refused.
        at_barrier: the name of the barrier that this rank is waiting in, for status reports.
        lanes: the asynchronous calls.
        journal: keeps what cells call; None if it is not kept.
    """

    def __init__(  # noqa: PLR0913  # all by keyword
        self,
        *,
        rank: int,
        world_size: int,
        local_rank: int = 0,
        node_rank: int = 0,
        local_world_size: int | None = None,
        device: torch.device = torch.device("cpu"),  # noqa: B008  # immutable
        cell_ranks: Sequence[int] | None = None,
    ) -> None:
        self._rank = rank
        self._world_size = world_size
        self._local_rank = local_rank
        self._node_rank = node_rank
        self._local_world_size = world_size if local_world_size is None else local_world_size
        self._device = device
        self._wires: dict[Any, GroupChannel] = {}
        self._world: Callable[[], Any] = _no_world
        """The world's group when a collective was last allowed to use it."""
        self.lanes = AsyncLanes(device)
        self._left = ""
        self._coming: list[Any] = []  # receives that may be under way
        self.cell_ranks = None if cell_ranks is None else list(cell_ranks)
        self.at_barrier: str | None = None
        self.journal: Any = None

    def __repr__(self) -> str:
        return f"<Communicator of rank {self.rank} of {self.world_size} on {self.device}>"

    # ---- who and where (Fabric's names)

    @property
    def rank(self) -> int:
        """This process's rank in the world, from 0."""
        return self._rank

    @property
    def global_rank(self) -> int:
        """The same as `rank`."""
        return self._rank

    @property
    def world_size(self) -> int:
        """The number of ranks in the world."""
        return self._world_size

    @property
    def local_rank(self) -> int:
        """This process's number among those of its node, from 0."""
        return self._local_rank

    @property
    def local_world_size(self) -> int:
        """The number of ranks on this node."""
        return self._local_world_size

    @property
    def node_rank(self) -> int:
        """The number of this node, from 0."""
        return self._node_rank

    @property
    def is_global_zero(self) -> bool:
        """Whether this is rank 0 of the world."""
        return self._rank == 0

    @property
    def device(self) -> torch.device:
        """The device of this rank."""
        return self._device

    # ---- groups

    def new_group(self, ranks: Iterable[int]) -> Any:
        """Make a group of some ranks, for ``group=``. Every rank of the world must call this, with the same ranks.

        Args:
            ranks: global ranks, in any order; the group numbers them ascending.

        Returns:
            A ``torch.distributed.ProcessGroup``. On ranks that are not members, a stand-in that knows the members;
            passing it to a collective raises.

        Raises:
            CollectiveError: the ranks are none, not all different, or not all in the world.
            SubsetError: the cell does not run on every rank.
        """
        wanted = list(ranks)
        whole = all(hasattr(rank, "__index__") for rank in wanted)
        if not whole or not wanted or len(set(wanted)) < len(wanted) or not set(wanted) <= set(range(self.world_size)):
            raise CollectiveError(
                f"new_group needs different ranks out of {rank_sets.fold(range(self.world_size))}, not {wanted}."
            )
        self._check_present("new_group", range(self.world_size))
        made = dist.new_group(wanted)
        return made if self.rank in wanted else OutsideGroup(sorted(wanted))

    def group_rank(self, group: Group, rank: int | None = None) -> int:
        """Say which number a rank has within a group. Not a collective: any rank may ask.

        Args:
            group: as everywhere; None for the world.
            rank: a global rank; None for this one.

        Raises:
            CollectiveError: the rank is not a member; the message says who is.
        """
        asked = self.rank if rank is None else rank
        members = members_of(group)
        if asked not in members:
            raise CollectiveError(f"Rank {asked} is not a member of this group: its members are {named(members)}.")
        return members.index(asked)

    def leave_behind(self, reason: str) -> None:
        """Refuse all calls in the child of a fork, before torch sees one of their tensors.

        A thread that is no more may have held a lock of torch's own: even `torch.cat` has one at its first use.

        Args:
            reason: what they raise, and the handles that were under way.
        """
        self._left, self._wires = reason, {}
        self.lanes.leave_behind(reason)

    # ---- around the collectives

    def rank_print(self, *args: Any, ranks: int | str | Iterable[int] = 0, **print_kwargs: Any) -> None:
        """Print on some ranks only. Not a collective.

        Args:
            *args: as for ``print``.
            ranks: a rank, several, or a SPEC such as "0-2" or "all".
            **print_kwargs: as for ``print``.
        """
        if isinstance(ranks, str):
            ranks = rank_sets.parse(ranks, self.world_size)
        if self.rank == ranks or (not isinstance(ranks, int) and self.rank in ranks):
            print(*args, **print_kwargs)  # noqa: T201  # that is what it is for

    def show(self, *values: Any) -> None:
        """Show values as a cell shows that of its last line; None shows nothing. Not a collective.

        In a script each is printed after its rank, as ``[2] tensor(3)``.
        """
        for value in values:
            if value is None:
                continue
            if self.journal is not None:  # in a cell
                from IPython.display import display

                display(value)
            else:
                label = f"[{self.rank}] "
                text = label + repr(value).replace("\n", "\n" + " " * len(label)) + "\n"
                print(text, end="", flush=True)  # noqa: T201 - at once, or lines of several ranks mix

    def no_backward_sync(
        self,
        module: torch.nn.Module,
        enabled: bool = True,  # noqa: FBT001, FBT002
    ) -> AbstractContextManager[Any]:
        """Skip the synchronization of gradients in backward, to accumulate them. Use it as ``with``.

        Args:
            module: wrapped by DistributedDataParallel, FSDP or ``fully_shard``.
            enabled: False does nothing, so that the last of the accumulated steps can share the code.

        Raises:
            CollectiveError: the module is not wrapped.

        >>> with no_backward_sync(model, enabled=step % 4 != 3):  # doctest: +SKIP
        ...     loss(model(x)).backward()
        """
        paused = pause_gradient_sync(module)
        return paused if enabled else contextlib.nullcontext()

    def to_device(self, data: Any) -> Any:
        """Move data to this rank's device: modules (in place), tensors, all that has ``.to``, and nested data."""
        if callable(getattr(data, "to", None)) and not isinstance(data, type):  # a PackedSequence is a tuple, too
            return data.to(self.device)
        pairs = pytrees.children(data)
        return data if pairs is None else pytrees.rebuild(data, [self.to_device(child) for _, child in pairs])

    # ---- checks

    def _channel(self, name: str, group: Any) -> GroupChannel:
        """Return the channel of a group for a collective called ``name``, after a check that all members run the cell.

        It waits until the group's asynchronous calls are done: they were begun before.
        """
        world = dist.group.WORLD
        known = group is None or (isinstance(group, dist.ProcessGroup) and process_groups.is_known(group))
        if known and world is not None and world is self._world() and not self.lanes.any and self.cell_ranks is None:
            channel = self._wires.get(group)
            if channel is not None:  # as below, where nothing has changed since
                channel.call = name
                return channel
        process_group = resolve(group)
        if self.lanes.any:
            self.lanes.drain(lane_of(process_group))
        channel = self._wire_of(process_group)
        channel.call = name
        self._check_present(name, channel.ranks)
        self._world = _no_world if world is None else weakref.ref(world)
        return channel

    def _beside(self, name: str, group: Any, job: Callable[[], Any], *, sync_grads: bool = False) -> Handle:
        """Begin an asynchronous collective of a group."""
        if sync_grads:
            raise CollectiveError(
                "async_op=True bypasses autograd and has no gradients; use either async_op=True or sync_grads=True."
            )
        process_group = resolve(group)
        self._check_present(name, self._wire_of(process_group).ranks)
        return self.lanes.begin(lane_of(process_group), job)

    def _peer_wire(self, group: Any, peer: int | None, word: str) -> GroupChannel:
        channel = self._wire_of(resolve(group))
        if peer is None:
            return channel
        self._check_member(channel, peer, word)
        if peer == self.rank:
            raise CollectiveError(f"A rank cannot send to itself, or receive from itself; {word} must be another rank.")
        if self.cell_ranks is not None and not self.lanes.earlier():
            subset.check_peer("send to" if word == "dst" else "recv from", peer, self.cell_ranks)
        return channel

    def _wire_of(self, process_group: dist.ProcessGroup | None) -> GroupChannel:
        channel = self._wires.get(process_group)
        if channel is None:
            if self._left:
                raise CollectiveError(self._left)
            self._wires = {group: it for group, it in self._wires.items() if process_groups.is_known(group)}
            members = list(range(self.world_size)) if process_group is None else members_of(process_group)
            channel = self._wires[process_group] = GroupChannel(
                process_group, members, members.index(self.rank), self.device, self._line
            )
        return channel

    def _line(self) -> int:
        return self.journal.line() if self.journal is not None else 0  # else in a script

    def _check_present(self, name: str, members: Sequence[int]) -> None:
        # The members need not run this cell for what an earlier cell began.
        if self.cell_ranks is not None and not self.lanes.earlier():
            subset.check_present(name, members, self.cell_ranks, self.world_size)

    @staticmethod
    def _check_member(channel: GroupChannel, rank: int, word: str) -> None:
        if not hasattr(rank, "__index__"):  # 1.0 equals a rank, but torch takes integers only
            raise CollectiveError(f"{word} must be a whole number, the global rank of a member, not {rank!r}.")
        if rank not in channel.ranks:
            raise CollectiveError(
                f"{word}={rank!r} is not a rank of the group; choose one of {rank_sets.fold(channel.ranks)}."
            )


def _no_world() -> None:
    return None
