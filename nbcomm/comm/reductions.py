"""Collectives that combine data: reduce, all_reduce, reduce_scatter, scan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..errors import CollectiveError
from .algorithms import autograd, reduce, reduce_ops, scan
from .collective import collective
from .data_movement import DataMovement, shares_of
from .transport import pytrees
from .transport.exchange import GroupChannel

if TYPE_CHECKING:
    from .transport.group_args import Group


class Reductions(DataMovement):
    """The collectives that combine the ranks' data element by element."""

    @collective
    def reduce(  # noqa: PLR0913  # by keyword
        self,
        data: Any,
        op: Any = "sum",
        dst: int = 0,
        *,
        group: Group = None,
        sync_grads: bool = False,
        async_op: bool = False,
    ) -> Any:
        """Combine every rank's data on ``dst``. Every rank of the group must call this.

        Args:
            data: as in `all_reduce`.
            op: as in `all_reduce`.
            dst: a global rank.
            group: the ranks that take part; None for the world.
            sync_grads: let gradients flow back from ``dst``. The same tensors must require grad on every rank. Then
                backward is a collective, too, and every rank must call it: on ``dst`` of what it makes of the result,
                elsewhere of the zero that it gets here.
            async_op: begin, and return a `Handle` at once; the data must be left alone until it is done.

        Returns:
            On ``dst`` what `all_reduce` would return, None elsewhere (with ``sync_grads`` a zero to call backward on).

        Raises:
            OpError: as in `all_reduce`.
            CollectiveError: as in `all_reduce`.

        >>> reduce(torch.tensor(10 * rank))  # on rank 0 of 4  # doctest: +SKIP
        tensor(60)
        """
        channel = self._channel("reduce", group)
        self._check_member(channel, dst, "dst")
        known, here = reduce_ops.parse(op), self.rank == dst
        flags = self._flags(channel, data) if sync_grads else []
        results = reduce.reduce_tree(channel, data, known, dst)
        if not any(flags):
            return pytrees.fill(data, iter(results)) if here else None
        inputs = autograd.chosen(data, flags)
        if known.linear:
            scale = known.scale(channel.size)
            back = autograd.broadcast_from(lambda: self._channel("the backward of reduce", group), dst, scale)
            if not here:
                return autograd.link(self.device, inputs, back)
            tied = autograd.tie(autograd.chosen(results, flags), inputs, back)
        else:
            rows = self._rows_with_grad(channel, inputs, group)
            if not here:
                return autograd.link(self.device, rows, lambda _: [torch.zeros_like(row) for row in rows])
            tied = [reduce_ops.fold(known, row) for row in rows]
        return autograd.replaced(pytrees.fill(data, iter(results)), flags, tied)

    @collective
    def all_reduce(  # noqa: PLR0913  # by keyword
        self,
        data: Any,
        op: Any = "sum",
        sync_grads: bool = False,  # noqa: FBT001, FBT002
        out: Any = None,
        *,
        group: Group = None,
        async_op: bool = False,
    ) -> Any:
        """Combine every rank's data, element by element, on every rank. Every rank of the group must call this.

        Args:
            data: a tensor, numpy array or number, or nested data of them; of the same shapes and dtypes on every rank.
            op: sum, mean (avg), min, max, product (prod), band, bor or bxor, in any letter case, or a ``ReduceOp``.
                With a NaN on some rank, min and max are NaN.
            sync_grads: let gradients flow back, summed over the ranks. The same tensors must require grad
                on every rank; backward is a collective, too, and every rank must call it.
            out: write the results into these tensors (arrays), of ``data``'s structure, and return them; may be
                ``data`` itself.
            group: the ranks that take part; None for the world.
            async_op: begin, and return a `Handle` at once; the data must be left alone until it is done.

        Returns:
            Data like ``data``. Python ints stay exact however long; floats are float64. The mean of integers is
            a float: torch's default dtype for tensors. A sum of bools counts them: int64 for tensors.

        Raises:
            OpError: there is no such op, or the dtype does not have it.
            CollectiveError: the ranks' nested data differ, or ``out`` does not fit.

        >>> all_reduce(torch.tensor(10 * rank)), all_reduce(rank, "mean")  # on each of 4 ranks  # doctest: +SKIP
        (tensor(60), 1.5)
        """
        channel = self._channel("all_reduce", group)
        known = reduce_ops.parse(op)
        if out is not None:
            if sync_grads:
                raise CollectiveError(
                    "out= bypasses autograd and has no gradients; use either out= or sync_grads=True."
                )
            return reduce.reduce_into(channel, data, known, out)
        if isinstance(data, torch.Tensor) and not sync_grads:
            whole = data.detach() if data.requires_grad else data  # this path must be as fast as torch's
            return reduce.reduce_one(channel, whole, known)
        results = reduce.reduce_tree(channel, data, known, None, grads=sync_grads)
        flags = autograd.requires_grad(data) if sync_grads else []
        if not any(flags):
            return pytrees.fill(data, iter(results))
        inputs = autograd.chosen(data, flags)
        if known.linear:
            scale = known.scale(channel.size)
            back = autograd.summed(lambda: self._channel("the backward of all_reduce", group), scale)
            tied = autograd.tie(autograd.chosen(results, flags), inputs, back)
        else:
            tied = [reduce_ops.fold(known, row) for row in self._rows_with_grad(channel, inputs, group)]
        return autograd.replaced(pytrees.fill(data, iter(results)), flags, tied)

    def _rows_with_grad(
        self, channel: GroupChannel, inputs: Sequence[torch.Tensor], group: Group
    ) -> list[torch.Tensor]:
        # Only all values together say which rank held the minimum, or what the others multiply by.
        rows: list[torch.Tensor] = self._all_gather(channel, list(inputs), "stack", group=group, grads=True)
        return rows

    @staticmethod
    def _flags(channel: GroupChannel, data: Any) -> list[bool]:
        """Return which leaves gradients flow back to; raise if the ranks' answers differ."""
        needs = autograd.agree(channel, autograd.requires_grad(data))
        autograd.check_alike(channel, needs, "on every rank")
        found: list[bool] = needs[channel.me]
        return found

    @collective
    def reduce_scatter(
        self, data: Any, op: Any = "sum", *, group: Group = None, sync_grads: bool = False, async_op: bool = False
    ) -> Any:
        """Combine every rank's data and give each rank its share. Every rank of the group must call this.

        Args:
            data: a tensor of shape (W·n, …) on a group of W ranks, cut into W shares of (n, …); or a list or tuple with
                one entry for each rank, each of what `all_reduce` takes.
            op: as in `all_reduce`.
            group: the ranks that take part; None for the world.
            sync_grads: let gradients flow back, each rank's to its share everywhere. The same tensors must require
                grad in every share of every rank; then backward is a collective, too, and every rank must call it.
            async_op: begin, and return a `Handle` at once; the data must be left alone until it is done.

        Returns:
            This rank's share of the result.

        Raises:
            OpError: as in `all_reduce`.
            CollectiveError: the data cannot be shared among the ranks.

        >>> reduce_scatter(torch.arange(4))  # on rank 1 of 2  # doctest: +SKIP
        tensor([4, 6])
        """
        channel = self._channel("reduce_scatter", group)
        known = reduce_ops.parse(op)
        if isinstance(data, torch.Tensor):
            if data.ndim == 0 or data.shape[0] % channel.size:
                raise CollectiveError(
                    f"reduce_scatter cannot cut {pytrees.describe(data)} into {channel.size} equal shares along its "
                    f"first dimension. Pad it to a multiple of {channel.size}, or pass a list of {channel.size} "
                    "tensors."
                )
            if sync_grads:
                return self._reduce_scatter_with_grad(channel, list(data.chunk(channel.size)), known, group)
            return reduce.reduce_scatter_one(channel, data.detach(), known)
        if isinstance(data, np.ndarray):
            reduce.check_array("data", data, known.name)
            return self.reduce_scatter(reduce.as_tensor(data, known), known, group=group).numpy()
        shares = shares_of(data, channel.size, "reduce_scatter")
        if sync_grads:
            return self._reduce_scatter_with_grad(channel, shares, known, group)
        results = reduce.reduce_tree(channel, shares, known, None)
        return pytrees.fill(shares, iter(results))[channel.me]

    def _reduce_scatter_with_grad(
        self, channel: GroupChannel, shares: list[Any], op: reduce_ops.Op, group: Group
    ) -> Any:
        needs = [autograd.requires_grad(share) for share in shares]
        self._flags(channel, shares)
        autograd.check_alike(channel, needs, "in every share")
        flags = needs[channel.me]
        result = pytrees.fill(shares, iter(reduce.reduce_tree(channel, shares, op, None)))[channel.me]
        if not any(flags):
            return result
        inputs = [leaf for share in shares for leaf in autograd.chosen(share, flags)]
        if op.linear:
            scale = op.scale(channel.size)
            back = autograd.gathered(lambda: self._channel("the backward of reduce_scatter", group), scale)
            tied = autograd.tie(autograd.chosen(result, flags), inputs, back)
        else:
            count = sum(flags)
            rows = self._rows_with_grad(channel, inputs, group)
            tied = [reduce_ops.fold(op, row) for row in rows[channel.me * count : (channel.me + 1) * count]]
            # Rows that this rank does not need belong to other ranks: their backward needs this rank's part all the
            # same.
        return autograd.replaced(result, flags, tied)

    @collective
    def scan(  # noqa: PLR0913  # by keyword
        self,
        data: Any,
        op: Any = "sum",
        exclusive: bool = False,  # noqa: FBT001, FBT002
        *,
        group: Group = None,
        sync_grads: bool = False,
        async_op: bool = False,
    ) -> Any:
        """Combine the data of the ranks up to this one, in group order. Every rank of the group must call this.

        Args:
            data: as in `all_reduce`.
            op: as in `all_reduce`.
            exclusive: leave out this rank's own data. The first rank then gets what changes nothing under ``op``:
                0 for a sum, 1 for a product, infinity (the dtype's greatest) for a minimum; NaN for a mean.
            group: the ranks that take part; None for the world.
            sync_grads: let gradients flow back to the ranks before. The same tensors must require grad on every rank;
                then backward is a collective, too, and every rank must call it.
            async_op: begin, and return a `Handle` at once; the data must be left alone until it is done.

        Returns:
            Data like ``data``; its dtypes are those of `all_reduce`.

        Raises:
            OpError: as in `all_reduce`.
            CollectiveError: as in `all_reduce`.

        >>> scan(rank), scan(rank, exclusive=True)  # on rank 3 of 4  # doctest: +SKIP
        (6, 3)
        """
        channel = self._channel("scan", group)
        known = reduce_ops.parse(op)
        flags = self._flags(channel, data) if sync_grads else []
        results = scan.scan_tree(channel, data, known, exclusive=exclusive)
        if not any(flags):
            return pytrees.fill(data, iter(results))
        inputs = autograd.chosen(data, flags)
        count = channel.me + (not exclusive)
        kept = autograd.chosen(results, flags)
        if known.linear:
            scale = known.scale(max(count, 1))
            back = autograd.summed_from_here(
                lambda: self._channel("the backward of scan", group), scale, exclusive=exclusive
            )
            tied = autograd.tie(kept, inputs, back)
        else:
            rows = self._rows_with_grad(channel, inputs, group)
            if count:
                tied = [reduce_ops.fold(known, row[:count]) for row in rows]
            else:  # the first rank's results depend on no other rank, but its backward is needed
                tied = autograd.tie(kept, rows, lambda _: [torch.zeros_like(row) for row in rows])
        return autograd.replaced(pytrees.fill(data, iter(results)), flags, tied)

    def any_rank(self, flag: Any, *, group: Group = None) -> bool:
        """Tell whether something is true on at least one rank. Every rank of the group must call this.

        Args:
            flag: a bool, or a value that can be converted: a number, or a tensor of one element.
            group: the ranks that take part; None for the world.

        >>> if any_rank(loss.isnan()):  # doctest: +SKIP
        ...     load_the_last_checkpoint()
        """
        return bool(self.all_reduce(bool(flag), "max", group=group))

    def all_ranks(self, flag: Any, *, group: Group = None) -> bool:
        """Tell whether something is true on every rank. Every rank of the group must call this.

        Args:
            flag: as in `any_rank`.
            group: the ranks that take part; None for the world.

        >>> if all_ranks(done):  # doctest: +SKIP
        ...     break
        """
        return bool(self.all_reduce(bool(flag), "min", group=group))
