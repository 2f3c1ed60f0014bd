"""Collectives that move data unchanged: barrier, broadcast, scatter, gather, all_gather, all_to_all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist

from ..errors import CollectiveError
from .algorithms import autograd, join
from .algorithms.timed_barrier import barrier_with_timeout, limit_of
from .collective import collective
from .rank_order import RankOrder
from .transport import pytrees
from .transport.async_lanes import Handle
from .transport.exchange import GroupChannel, own_error, wait
from .transport.packets import Packet, pack, plain

if TYPE_CHECKING:
    from .transport.group_args import Group

Packed = TypeVar("Packed")


class DataMovement(RankOrder):
    """The exchange of data of any kind among ranks."""

    # ---- from one to all, from all to one

    @collective
    def barrier(
        self,
        name: str | None = None,
        timeout: float | timedelta | None = None,
        *,
        group: Group = None,
        async_op: bool = False,
    ) -> Handle | None:
        """Wait until every rank of the group has arrived here. Every rank of the group must call this.

        Args:
            name: shown wherever it is shown who waits for whom.
            timeout: seconds (or a timedelta) to wait at most; None, or infinity, waits as long as the group does.
            group: the ranks to wait for; None for the world.
            async_op: return a `Handle` at once, that is done when every rank has arrived.

        Raises:
            CollectiveError: the time is over; group rank 0 names the missing ranks. Or ``timeout`` is not positive.
        """
        limit = limit_of(timeout)
        channel = self._channel("barrier", group)
        self.at_barrier = name
        try:
            if limit is None:
                dist.barrier(group=channel.group)
            else:
                barrier_with_timeout(channel, name, limit)
        finally:
            self.at_barrier = None
        return None

    @collective
    def broadcast(
        self, data: Any, src: int = 0, *, group: Group = None, sync_grads: bool = False, async_op: bool = False
    ) -> Any:
        """Give every rank the data of ``src``. Every rank of the group must call this.

        Args:
            data: on ``src`` any picklable value; on the other ranks it is not looked at (None will do).
            src: a global rank.
            group: the ranks that take part; None for the world.
            sync_grads: let gradients flow back to ``src``, summed over the ranks; that of what another rank passes is
                zero. Then backward is a collective, too, and every rank must call it.
            async_op: begin, and return a `Handle` at once; the data must be left alone until it is done.

        Returns:
            A copy of the data, on ``src`` too. Tensors that came from an accelerator arrive on this rank's device.

        Raises:
            CollectiveError: ``src`` is not in the group, or its data cannot be pickled; on every rank.

        >>> broadcast({"lr": 0.1} if rank == 0 else None)  # doctest: +SKIP
        {'lr': 0.1}
        """
        channel = self._channel("broadcast", group)
        self._check_member(channel, src, "src")
        copy = self._broadcast(channel, data, src)
        if not sync_grads:
            return copy
        flags = autograd.agree(channel, autograd.requires_grad(data) if self.rank == src else None)[
            channel.ranks.index(src)
        ]
        results = [leaf.detach() for leaf in autograd.chosen(copy, flags)]
        if not results:
            return copy
        inputs = autograd.chosen(data, flags) if self.rank == src else autograd.needing(data)
        back = autograd.summed_on(lambda: self._channel("the backward of broadcast", group), src)
        return autograd.replaced(copy, flags, autograd.tie(results, inputs, back))

    def _broadcast(self, channel: GroupChannel, data: Any, src: int) -> Any:
        if self.rank != src:
            got = channel.broadcast(src)
            return got if isinstance(got, torch.Tensor) else got.open(self.device)
        if type(data) is torch.Tensor and channel.broadcast_small(data):
            return data.clone(memory_format=torch.contiguous_format)
        packet, refused = packed(lambda: pack(data, channel.carries, alone=True))
        posted = channel.post_broadcast(packet)
        copy = packet.open(self.device, sent=True) if refused is None else None  # made while the parts are being sent
        wait(posted)
        if refused is not None:
            cause = refused.__cause__ if isinstance(refused, CollectiveError) else refused
            raise CollectiveError(f"Nothing was moved: rank {src} failed: {refused}") from cause
        return copy

    @collective
    def scatter(
        self, items: Any, src: int = 0, *, group: Group = None, sync_grads: bool = False, async_op: bool = False
    ) -> Any:
        """Give each rank one of the items that ``src`` has. Every rank of the group must call this.

        Args:
            items: on ``src`` a list or tuple with one entry for each rank of the group, in group order, of any
                picklable kind, or a tensor (array) whose first dimension is the group's size; elsewhere not looked at.
            src: a global rank.
            group: the ranks that take part; None for the world.
            sync_grads: let gradients flow back to ``src``, each rank's to its item; that of what another rank passes is
                zero. The same tensors must require grad in every item; then backward is a collective, too, and every
                rank must call it.
            async_op: begin, and return a `Handle` at once; the data must be left alone until it is done.

        Returns:
            This rank's item; of a tensor its slice, without the first dimension.

        Raises:
            CollectiveError: ``src`` has another number of items; on every rank.

        >>> scatter(["a", "b", "c", "d"] if rank == 0 else None)  # on rank 2 of 4  # doctest: +SKIP
        'c'
        """
        channel = self._channel("scatter", group)
        self._check_member(channel, src, "src")
        if not sync_grads:
            return self._scatter(channel, items, src)
        shares: list[Any] = []
        if self.rank == src:
            with suppress(CollectiveError):  # raised below, on every rank
                shares = shares_of(items, channel.size, "scatter")
        item = self._scatter(channel, shares or items, src)
        needs = autograd.agree(channel, [autograd.requires_grad(share) for share in shares])[channel.ranks.index(src)]
        autograd.check_alike(channel, needs, "in every item")
        results = [leaf.detach() for leaf in autograd.chosen(item, needs[channel.me])]
        if not results:
            return item
        inputs = autograd.needing(shares if self.rank == src else items)
        back = autograd.gathered_on(lambda: self._channel("the backward of scatter", group), src)
        return autograd.replaced(item, needs[channel.me], autograd.tie(results, inputs, back))

    def _scatter(self, channel: GroupChannel, items: Any, src: int) -> Any:
        if self.rank != src:
            return channel.scatter(None, src).open(self.device)
        packets, refused = packed(
            lambda: [pack(item, channel.carries) for item in shares_of(items, channel.size, "scatter")]
        )
        with own_error(refused):
            got = channel.scatter(packets if isinstance(packets, list) else [packets] * channel.size, src)
        return got.open(self.device)

    @collective
    def gather(  # noqa: PLR0913  # by keyword
        self,
        data: Any,
        dst: int = 0,
        mode: str = "list",
        *,
        group: Group = None,
        sync_grads: bool = False,
        async_op: bool = False,
    ) -> Any:
        """Collect every rank's data on ``dst``. Every rank of the group must call this.

        Args:
            data: any picklable value; shapes may differ in the modes "list" and "cat".
            dst: a global rank.
            mode: as in `all_gather`.
            group: the ranks that take part; None for the world.
            sync_grads: let gradients flow back to the ranks that the tensors came from. The same tensors must require
                grad on every rank. Then backward is a collective, too, and every rank must call it: on ``dst`` of
                what it makes of the result, elsewhere of the zero that it gets here.
            async_op: begin, and return a `Handle` at once; the data must be left alone until it is done.

        Returns:
            On ``dst`` what `all_gather` would return, None elsewhere (with ``sync_grads`` a zero to call backward on).

        Raises:
            CollectiveError: the values cannot be joined. For tensors that is raised on every rank; for nested data
                only ``dst`` can know, and raises alone.

        >>> gather(rank * 10)  # on rank 0 of 4  # doctest: +SKIP
        [0, 10, 20, 30]
        """
        channel = self._channel("gather", group)
        self._check_member(channel, dst, "dst")
        join.check_mode(mode)
        _check_walked(mode, sync_grads=sync_grads)
        packet, heads = _exchange_heads(channel, lambda: data, alone=False)
        join.check_bare(channel, [head.bare for head in heads], mode)
        packets = channel.gather(packet, heads, dst)
        own = mode in ("list", "object") or sync_grads
        values = None if packets is None else [got.open(self.device, own=own) for got in packets]
        if not sync_grads:
            return None if values is None else join.join(channel, values, mode, channel.me)
        back = autograd.scattered_from(lambda: self._channel("the backward of gather", group), dst)
        return self._joined_with_grad(channel, data, values, mode, back)

    def _joined_with_grad(
        self, channel: GroupChannel, data: Any, values: Sequence[Any] | None, mode: str, back: autograd.Back
    ) -> Any:
        """Join what all ranks gave, connected to this rank's data for autograd; ``values`` is None if not known."""
        needs = autograd.agree(channel, autograd.requires_grad(data))
        autograd.check_alike(channel, needs, "on every rank")
        flags = needs[channel.me]
        inputs = autograd.chosen(data, flags)
        if values is None:
            return autograd.link(self.device, inputs, back) if inputs else None
        joined = join.join(
            channel, values, mode, channel.me
        )  # raises if they cannot be joined, before the graph is changed
        if not inputs:
            return joined
        gathered = [autograd.chosen(value, flags) for value in values]
        parts = [part.detach() for each in zip(*gathered, strict=True) for part in each]
        tied = autograd.tie(parts, inputs, back)
        values = [autograd.replaced(value, flags, tied[place :: channel.size]) for place, value in enumerate(values)]
        return join.join(channel, values, mode, channel.me)

    @collective
    def all_gather(
        self,
        data: Any,
        mode: str = "stack",
        sync_grads: bool = False,  # noqa: FBT001, FBT002
        *,
        group: Group = None,
        async_op: bool = False,
    ) -> Any:
        """Collect every rank's data on every rank. Every rank of the group must call this.

        Args:
            data: any picklable value. Nested collections are walked, and their leaves collected.
            mode: what becomes of a tensor or array of shape (d, …), on a group of W ranks:

                - "stack": (W, d, …), of equal shapes;
                - "cat": joined along the first dimension, which may be uneven; W scalars become (W,);
                - "list": a list of W, of any shapes;
                - "object": nothing is walked; a list of what each rank passed, whatever it is.

                Any other leaf becomes a list of W, in every mode.
            sync_grads: let gradients flow back to the ranks that the tensors came from, summed over the ranks that
                use them. Then backward is a collective, too, and every rank must call it.
            group: the ranks that take part; None for the world.
            async_op: begin, and return a `Handle` at once; the data must be left alone until it is done.

        Raises:
            CollectiveError: the values cannot be joined; on every rank, saying which rank sent what.

        >>> all_gather(torch.tensor(10 * rank))  # on each of 4 ranks  # doctest: +SKIP
        tensor([ 0, 10, 20, 30])
        """
        channel = self._channel("all_gather", group)
        join.check_mode(mode)
        _check_walked(mode, sync_grads=sync_grads)
        return self._all_gather(channel, data, mode, group=group, grads=sync_grads)

    def _all_gather(
        self, channel: GroupChannel, data: Any, mode: str, *, group: Group = None, grads: bool = False
    ) -> Any:
        """Gather in the way that suits what the ranks have; the heads tell every rank which way all of them go.

        ::

            what the ranks have                        what travels, in this order
            one tensor on every rank, alike            heads, rows, which arrive where they stay
            the same, not alike, or mode "list"        heads, the rest of the values
            nested data, alike on all ranks            heads and rest of summaries, tensors fused
            the same, not alike                        heads and rest of summaries, heads, the rest of the values
            a tensor on some ranks, nested on others   heads, heads, the rest of the values
            any, in mode "object", or with gradients   heads, the rest of the values
        """
        if mode == "object" or grads:
            packet, heads = _exchange_heads(channel, lambda: data)
            join.check_bare(channel, [head.bare for head in heads], mode)
            values = [got.open(self.device) for got in channel.all_gather(packet, heads)]
            if not grads:
                return join.join(channel, values, mode, channel.me)
            back = autograd.summed_part(lambda: self._channel("the backward of all_gather", group))
            return self._joined_with_grad(channel, data, values, mode, back)
        packet, heads = _exchange_heads(channel, lambda: data if plain(data) else join.summary(data))
        nested = sum(head.bare is None for head in heads)
        if not nested:
            return self._gather_tensors(channel, data, mode, packet, heads)
        if nested == channel.size:
            summaries = [got.open(self.device) for got in channel.all_gather(packet, heads)]
            if len({digest for digest, _ in summaries}) == 1:
                return join.gather_fused(channel, data, [others for _, others in summaries], mode)
        packet = pack(data, channel.carries, alone=True)
        values = [
            got.open(self.device, own=mode == "list") for got in channel.all_gather(packet, channel.heads(packet))
        ]
        return join.join(channel, values, mode, channel.me)

    def _gather_tensors(self, channel: GroupChannel, data: Any, mode: str, packet: Packet, heads: list[Packet]) -> Any:
        """Gather where every rank has one tensor, after the heads."""
        alike = join.check_bare(channel, [head.bare for head in heads], mode)
        part = packet.device if packet.host is None else packet.host  # None if it has travelled in the head
        if alike and part is not None and mode in ("stack", "cat"):
            shape = (channel.size, *data.shape) if mode == "stack" or data.ndim == 0 else (-1, *data.shape[1:])
            return channel.rows(part).view(data.dtype).view(shape).to(data.device)
        values = [got.open(self.device, own=mode == "list") for got in channel.all_gather(packet, heads)]
        return join.join(channel, values, mode, channel.me)

    @collective
    def all_to_all(
        self, items: Sequence[Any], *, group: Group = None, sync_grads: bool = False, async_op: bool = False
    ) -> Any:
        """Send one item to each rank and receive one from each. Every rank of the group must call this.

        Args:
            items: one entry for each rank of the group, in group order, of any picklable kind and any shapes; or a
                tensor (array) whose first dimension is the group's size.
            group: the ranks that take part; None for the world.
            sync_grads: let gradients flow back to the ranks that sent the tensors. The same tensors must require
                grad in every item of every rank; then backward is a collective, too, and every rank must call it.
            async_op: begin, and return a `Handle` at once; the data must be left alone until it is done.

        Returns:
            A list of what each rank sent here, in group order.

        Raises:
            CollectiveError: a rank has another number of items; on every rank.

        >>> all_to_all([f"{rank} to {other}" for other in range(2)])  # on rank 0 of 2  # doctest: +SKIP
        ['0 to 0', '1 to 0']
        """
        channel = self._channel("all_to_all", group)
        shares, refused = packed(lambda: shares_of(items, channel.size, "all_to_all"))
        packets: Any = shares
        if refused is None:
            packets, refused = packed(lambda: [pack(item, channel.carries) for item in cast("list[Any]", shares)])
        with own_error(refused):
            got = [packet.open(self.device) for packet in channel.all_to_all(packets)]
        if not sync_grads:
            return got
        needs = autograd.agree(channel, [autograd.requires_grad(share) for share in cast("list[Any]", shares)])
        autograd.check_alike(channel, [[flag for flags in row for flag in flags] for row in needs], "on every rank")
        autograd.check_alike(channel, needs[channel.me], "in every item")
        flags = needs[channel.me][channel.me]
        inputs = [leaf for share in cast("list[Any]", shares) for leaf in autograd.chosen(share, flags)]
        if not inputs:
            return got
        results = [leaf.detach() for value in got for leaf in autograd.chosen(value, flags)]
        count = sum(flags)
        back = autograd.exchanged(lambda: self._channel("the backward of all_to_all", group), [count] * channel.size)
        tied = autograd.tie(results, inputs, back)
        return [autograd.replaced(value, flags, tied[at * count : (at + 1) * count]) for at, value in enumerate(got)]


def packed(make: Callable[[], Packed]) -> tuple[Packed | Packet, Exception | None]:
    """Return what ``make`` packs; if it fails, an error packet for the other ranks, and the exception."""
    try:
        return make(), None
    except Exception as error:  # noqa: BLE001  # whatever it is, the other ranks wait for a word
        return Packet.error(f"failed: {error}"), error


def _exchange_heads(
    channel: GroupChannel, give: Callable[[], Any], *, alone: bool = True
) -> tuple[Packet, list[Packet]]:
    """Pack what this rank gives; return that, and every rank's head. An error of one rank is raised on all."""
    packet, refused = packed(lambda: pack(give(), channel.carries, alone=alone))
    with own_error(refused):
        return packet, channel.heads(packet)


def _check_walked(mode: str, *, sync_grads: bool) -> None:
    if sync_grads and mode == "object":
        raise CollectiveError("mode='object' sends values as objects, without gradients; use another mode.")


def shares_of(items: Any, size: int, name: str) -> list[Any]:
    """Return one item for each rank."""
    if isinstance(items, (torch.Tensor, np.ndarray)) and items.ndim and items.shape[0] == size:
        return list(items)
    if isinstance(items, (list, tuple)) and len(items) == size:
        return list(items)
    raise CollectiveError(
        f"{name} needs a list or tuple of {size} items, one for each rank of the group, not {pytrees.describe(items)}."
    )
