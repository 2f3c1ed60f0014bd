"""Blocks and functions that ranks run one after the other, or that only one rank runs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import CollectiveError
from .point_to_point import PointToPoint
from .transport.exchange import GroupChannel, known_call
from .transport.group_args import resolve
from .transport.packets import NOTICE, Packet

if TYPE_CHECKING:
    from .transport.group_args import Group

Function = TypeVar("Function", bound=Callable[..., Any])


_FIRST, _ONLY = known_call("rank_first"), known_call("one_rank_only")


class RankOrder(PointToPoint):
    """Ranks that take turns."""

    def rank_first(
        self,
        rank: int = 0,
        local: bool = False,  # noqa: FBT001, FBT002
        *,
        group: Group = None,
    ) -> contextlib.AbstractContextManager[None]:
        """Run the block on one rank first, then on the others. Every rank of the group must enter it.

        It is left together, too: no rank continues before all have passed it.

        Args:
            rank: the global rank that comes first; with ``local`` the local rank, on each node.
            local: one rank of every node first, for disks that the nodes do not share.
            group: the ranks that take part; None for the world.

        Raises:
            CollectiveError: no member of the group is that rank, or the block failed on another rank; the message names
                it. The rank itself raises what it met.

        >>> with rank_first(1):  # doctest: +SKIP
        ...     data = download()
        """
        channel = self._channel(_FIRST, group)
        if not local:
            self._check_member(channel, rank, "rank")
        return _first(channel, _FIRST, first=(self.local_rank if local else self.rank) == rank)

    def rank_zero_first(
        self,
        local: bool = False,  # noqa: FBT001, FBT002
        *,
        group: Group = None,
    ) -> contextlib.AbstractContextManager[None]:
        """Run the block on rank 0 first, then on the others; in a group, on its first rank. See `rank_first`.

        Args:
            local: local rank 0 of every node first, for disks that the nodes do not share.
            group: the ranks that take part; None for the world.

        >>> with rank_zero_first():  # doctest: +SKIP
        ...     data = download()
        """
        channel = self._channel("rank_zero_first", group)
        return _first(channel, "rank_zero_first", first=self.local_rank == 0 if local else channel.me == 0)

    def one_rank_only(
        self,
        rank: int = 0,
        with_barrier: bool = False,  # noqa: FBT001, FBT002
        *,
        group: Group = None,
    ) -> Callable[[Function], Function]:
        """Let a function run on one rank only; elsewhere calling it does nothing. A decorator, with Ignite's signature.

        Args:
            rank: the global rank that runs it.
            with_barrier: no rank returns from a call before that rank does; then every rank of the group must call it.
            group: the ranks that take part; None for the world.

        Returns:
            The decorator. What it makes returns the function's value on ``rank`` and None elsewhere.

        Raises:
            CollectiveError: with a barrier, on the others, if the function failed; the message says why.

        >>> @one_rank_only()  # doctest: +SKIP
        ... def save():
        ...     torch.save(model.state_dict(), "model.pt")
        """
        if callable(rank):  # @one_rank_only without parentheses
            return self.one_rank_only()(rank)
        self._check_member(self._wire_of(resolve(group)), rank, "rank")

        def decorate(function: Function) -> Function:
            @functools.wraps(function)
            def call(*args: Any, **kwargs: Any) -> Any:
                result, failure = None, None
                if self.rank == rank:
                    try:
                        result = function(*args, **kwargs)
                    except Exception as error:
                        if not with_barrier:
                            raise
                        failure = error
                if with_barrier:
                    _meet(self._channel(_ONLY, group), _ONLY, failure, f"{function.__name__}()")
                if failure is not None:
                    raise failure
                return result

            return call  # type: ignore[return-value]  # it has the function's signature

        return decorate


@contextlib.contextmanager
def _first(channel: GroupChannel, name: str, *, first: bool) -> Iterator[None]:
    where = f"its block of {name}"
    failure: Exception | None = None
    if not first:
        _meet(channel, _FIRST, None, where)
    try:
        yield
    except Exception as error:  # noqa: BLE001  # an interrupt is no Exception: it ends the others by its own means
        failure = error
    if first:
        _meet(channel, _FIRST, failure, where)
    if not (first and failure):  # otherwise the others have already left
        _meet(channel, _FIRST, failure, where)
    if failure is not None:
        raise failure


def _meet(channel: GroupChannel, call: str, failure: Exception | None, where: str) -> None:
    """Wait for the other ranks, and raise if one of them failed."""
    channel.call = call  # the failed block may have begun another call
    packet = Packet(NOTICE)
    if failure is not None:
        packet = Packet.error(f"failed in {where}: {type(failure).__name__}: {failure}")
    try:
        channel.heads(packet)
    except CollectiveError:
        if failure is None:
            raise
