"""Collectives that combine data: reduce, all_reduce, reduce_scatter, scan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...errors import CollectiveError
from . import joining, ops, reducing, scanning, trees
from .grad import sum_with_grad
from .movers import Movers, shares_of
from .wire import Wire

if TYPE_CHECKING:
    from .groups import Group


class Reductions(Movers):
    """What ranks make of their data together, element by element."""

    def reduce(self, data: Any, op: Any = "sum", dst: int = 0, *, group: Group = None) -> Any:
        """Combine every rank's data on ``dst``. Every rank of the group must call this.

        Args:
            data: as in `all_reduce`.
            op: as in `all_reduce`.
            dst: a global rank.
            group: the ranks that take part; None for the world.

        Returns:
            On ``dst`` what `all_reduce` would return, None elsewhere.

        Raises:
            OpError: as in `all_reduce`.
            CollectiveError: as in `all_reduce`.
        """
        wire = self._wire("reduce", group)
        self._check_member(wire, dst, "dst")
        results = reducing.reduce_tree(wire, data, ops.parse(op), dst)
        return trees.fill(data, iter(results)) if self.rank == dst else None

    def all_reduce(
        self,
        data: Any,
        op: Any = "sum",
        sync_grads: bool = False,  # noqa: FBT001, FBT002
        out: Any = None,
        *,
        group: Group = None,
    ) -> Any:
        """Combine every rank's data, element by element, on every rank. Every rank of the group must call this.

        Args:
            data: a tensor, numpy array or number, or nested data of them; of the same shapes and dtypes on every rank.
            op: sum, mean (avg), min, max, product (prod), band, bor or bxor, in any letter case, or a ``ReduceOp``.
            sync_grads: let gradients flow back, summed over the ranks. The same tensors must require grad
                on every rank; backward is a collective, too, and every rank must call it.
            out: write the results into these tensors (arrays), of ``data``'s structure, and return them; may be
                ``data`` itself.
            group: the ranks that take part; None for the world.

        Returns:
            Data like ``data``. Python ints stay exact however long; floats are float64. The mean of integers is
            a float: torch's default dtype for tensors. A sum of bools counts them: int64 for tensors.

        Raises:
            OpError: there is no such op, or the dtype does not have it.
            CollectiveError: the ranks' nested data differ, or ``out`` does not fit.

        >>> all_reduce(torch.tensor(10 * rank)), all_reduce(rank, "mean")  # on each of 4 ranks  # doctest: +SKIP
        (tensor(60), 1.5)
        """
        wire = self._wire("all_reduce", group)
        known = ops.parse(op)
        if out is not None:
            if sync_grads:
                raise CollectiveError("out= is written past autograd and has no gradients; use it or sync_grads=True.")
            return reducing.reduce_into(wire, data, known, out)
        if isinstance(data, torch.Tensor) and not sync_grads:
            return reducing.reduce_one(wire, data.detach(), known)  # the way that has to be as fast as torch's
        results = reducing.reduce_tree(wire, data, known, None, grads=sync_grads)
        needed = [place for place, need in enumerate(joining.requires_grad(data)) if need] if sync_grads else []
        if needed:
            leaves = [leaf for _, leaf in trees.leaves(data)]
            inputs = [leaves[place] for place in needed]
            for place, tied in zip(needed, self._tied(wire, known, inputs, [results[i] for i in needed]), strict=True):
                results[place] = tied
        return trees.fill(data, iter(results))

    def _tied(
        self, wire: Wire, op: ops.Op, inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """The results with a way back to the inputs."""
        if op.name in ("sum", "mean"):
            scale = 1.0 if op.name == "sum" else 1.0 / wire.size
            return sum_with_grad(reducing.summing(wire), scale, results, inputs)
        # Which rank held the minimum, or by what the others multiply: only all values together can tell.
        rows = self._all_gather(wire, list(inputs), "stack", grads=True)
        return [ops.fold(op, row) for row in rows]

    def reduce_scatter(self, data: Any, op: Any = "sum", *, group: Group = None) -> Any:
        """Combine every rank's data and give each rank its share. Every rank of the group must call this.

        Args:
            data: a tensor of shape (W·n, …) on a group of W ranks, cut into W shares of (n, …); or a list or tuple with
                one entry for each rank, each of what `all_reduce` takes.
            op: as in `all_reduce`.
            group: the ranks that take part; None for the world.

        Returns:
            This rank's share of the result.

        Raises:
            OpError: as in `all_reduce`.
            CollectiveError: the data cannot be shared among the ranks.

        >>> reduce_scatter(torch.arange(4))  # on rank 1 of 2  # doctest: +SKIP
        tensor([4, 6])
        """
        wire = self._wire("reduce_scatter", group)
        known = ops.parse(op)
        if isinstance(data, torch.Tensor):
            if data.ndim == 0 or data.shape[0] % wire.size:
                raise CollectiveError(
                    f"reduce_scatter cannot cut {trees.describe(data)} into {wire.size} equal shares along its first "
                    f"dimension. Pad it to a multiple of {wire.size}, or pass a list of {wire.size} tensors."
                )
            return reducing.reduce_scatter_one(wire, data.detach(), known)
        if isinstance(data, np.ndarray):
            return self.reduce_scatter(torch.from_numpy(data.copy()), known, group=group).numpy()
        shares = shares_of(data, wire.size, "reduce_scatter")
        results = reducing.reduce_tree(wire, shares, known, None)
        return trees.fill(shares, iter(results))[wire.me]

    def scan(
        self,
        data: Any,
        op: Any = "sum",
        exclusive: bool = False,  # noqa: FBT001, FBT002
        *,
        group: Group = None,
    ) -> Any:
        """Combine the data of the ranks up to this one, in group order. Every rank of the group must call this.

        Args:
            data: as in `all_reduce`.
            op: as in `all_reduce`.
            exclusive: leave out this rank's own data. The first rank then gets what changes nothing under ``op``:
                0 for a sum, 1 for a product, infinity (the dtype's greatest) for a minimum; NaN for a mean.
            group: the ranks that take part; None for the world.

        Returns:
            Data like ``data``; its dtypes are those of `all_reduce`.

        Raises:
            OpError: as in `all_reduce`.
            CollectiveError: as in `all_reduce`.

        >>> scan(rank), scan(rank, exclusive=True)  # on rank 3 of 4  # doctest: +SKIP
        (6, 3)
        """
        wire = self._wire("scan", group)
        results = scanning.scan_tree(wire, data, ops.parse(op), exclusive=exclusive)
        return trees.fill(data, iter(results))
