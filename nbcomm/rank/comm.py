"""The Communicator: the collectives, for data of any kind.

Laws that hold for every method:

* Every rank of the group must call it (of ``send`` and ``recv``: both ranks). ``src`` and ``dst`` are global ranks.
* What is returned is new: the input is never modified, and no result shares memory with it.
* Tensors stay tensors, numbers numbers, objects objects; nested dicts, lists, tuples, namedtuples and
  dataclasses keep their structure and their types. Results are detached, unless ``sync_grads=True``.
* An error that one rank meets before data moves is raised on every rank of the group, naming the rank. Two things
  are not asked beforehand, because one tensor alone should cost what it costs in torch: whether the ranks' tensors in
  a reduction have one shape and dtype, and whether the ranks are in the same collective at all.

What it costs beyond torch's own messages: nothing to reduce one tensor (``reduce_scatter``, too); a head
of 512 bytes first for everything else, and nothing after it if the data fits in. ``all_to_all`` needs two such rounds,
and so does ``all_gather`` of nested data that is not alike on all ranks, or with ``sync_grads``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from ..errors import CollectiveError
from . import comm_gather, comm_reduce, comm_scan, ops, trees
from .comm_barrier import barrier_with_timeout
from .comm_grad import sum_with_grad
from .comm_point import PointToPoint
from .comm_wire import Wire, own_error, wait
from .objects import Mail, pack, plain

if TYPE_CHECKING:
    from .comm_groups import Group

Packed = TypeVar("Packed")

NAMES = (
    "barrier",
    "broadcast",
    "scatter",
    "gather",
    "all_gather",
    "reduce",
    "all_reduce",
    "reduce_scatter",
    "all_to_all",
    "send",
    "recv",
    "sendrecv",
    "scan",
    "new_group",
    "group_rank",
    "rank_print",
    "rank_zero_first",
    "no_backward_sync",
    "to_device",
)
"""The methods that a cell sees by their bare names."""


class Communicator(PointToPoint):
    """The collectives of one rank, over the default group that somebody has initialized."""

    # ---- from one to all, from all to one

    def barrier(
        self, name: str | None = None, timeout: float | timedelta | None = None, *, group: Group = None
    ) -> None:
        """Wait until every rank of the group has come here. Every rank of the group must call this.

        Args:
            name: shown wherever it is shown who waits for whom.
            timeout: seconds (or a timedelta) to wait at most; None waits as long as the group does.
            group: the ranks to wait for; None for the world.

        Raises:
            CollectiveError: the time is over; group rank 0 names the missing ranks.
        """
        wire = self._wire("barrier", group)
        self.at_barrier = name
        try:
            if timeout is None:
                dist.barrier(group=wire.group)
            else:
                barrier_with_timeout(wire, name, timeout)
        finally:
            self.at_barrier = None

    def broadcast(self, data: Any, src: int = 0, *, group: Group = None) -> Any:
        """Give every rank the data of ``src``. Every rank of the group must call this.

        Args:
            data: on ``src`` any picklable value; on the other ranks it is not looked at (None will do).
            src: a global rank.
            group: the ranks that take part; None for the world.

        Returns:
            A copy of the data, on ``src`` too. Tensors that came from an accelerator arrive on this rank's device.

        Raises:
            CollectiveError: ``src`` is not in the group, or its data cannot be pickled; on every rank.

        >>> broadcast({"lr": 0.1} if rank == 0 else None)  # doctest: +SKIP
        {'lr': 0.1}
        """
        wire = self._wire("broadcast", group)
        self._check_member(wire, src, "src")
        if self.rank != src:
            return wire.broadcast(src).open(self.device)
        mail, refused = _packed(lambda: pack(data, wire.carries, alone=True))
        posted = wire.post_broadcast(mail)
        copy = mail.open(self.device, sent=True) if refused is None else None  # made while the parts are on their way
        wait(posted)
        if refused is not None:
            raise CollectiveError(f"broadcast moved nothing: rank {src} failed: {refused}") from refused
        return copy

    def scatter(self, items: Any, src: int = 0, *, group: Group = None) -> Any:
        """Give each rank one of the items that ``src`` has. Every rank of the group must call this.

        Args:
            items: on ``src`` a list or tuple with one entry for each rank of the group, in group order, of any
                picklable kind, or a tensor (array) whose first dimension is the group's size; elsewhere not looked at.
            src: a global rank.
            group: the ranks that take part; None for the world.

        Returns:
            This rank's item; of a tensor its slice, without the first dimension.

        Raises:
            CollectiveError: ``src`` has another number of items; on every rank.

        >>> scatter(["a", "b", "c", "d"] if rank == 0 else None)  # on rank 2 of 4  # doctest: +SKIP
        'c'
        """
        wire = self._wire("scatter", group)
        self._check_member(wire, src, "src")
        if self.rank != src:
            return wire.scatter(None, src).open(self.device)
        mails, refused = _packed(lambda: [pack(item, wire.carries) for item in _shares(items, wire.size, "scatter")])
        with own_error(refused):
            got = wire.scatter(mails if isinstance(mails, list) else [mails] * wire.size, src)
        return got.open(self.device)

    def gather(self, data: Any, dst: int = 0, mode: str = "list", *, group: Group = None) -> Any:
        """Collect every rank's data on ``dst``. Every rank of the group must call this.

        Args:
            data: any picklable value; shapes may differ in the modes "list" and "cat".
            dst: a global rank.
            mode: as in `all_gather`.
            group: the ranks that take part; None for the world.

        Returns:
            On ``dst`` what `all_gather` would return, None elsewhere.

        Raises:
            CollectiveError: the values cannot be joined. For tensors that is raised on every rank; for nested data
                only ``dst`` can know, and raises alone.

        >>> gather(rank * 10)  # on rank 0 of 4  # doctest: +SKIP
        [0, 10, 20, 30]
        """
        wire = self._wire("gather", group)
        self._check_member(wire, dst, "dst")
        comm_gather.check_mode(mode)
        mail, refused = _packed(lambda: pack(data, wire.carries))
        with own_error(refused):
            heads = wire.heads(mail)
        comm_gather.check_bare(wire, [head.bare for head in heads], mode)
        mails = wire.gather(mail, heads, dst)
        if mails is None:
            return None
        own = mode in ("list", "object")
        return comm_gather.join(wire, [got.open(self.device, own=own) for got in mails], mode, wire.me)

    def all_gather(
        self,
        data: Any,
        mode: str = "stack",
        sync_grads: bool = False,  # noqa: FBT001, FBT002
        *,
        group: Group = None,
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

        Raises:
            CollectiveError: the values cannot be joined; on every rank, saying which rank sent what.

        >>> all_gather(torch.tensor(10 * rank))  # on each of 4 ranks  # doctest: +SKIP
        tensor([ 0, 10, 20, 30])
        """
        wire = self._wire("all_gather", group)
        comm_gather.check_mode(mode)
        if sync_grads and mode == "object":
            raise CollectiveError("mode='object' passes values on whole, without gradients; use another mode.")
        return self._all_gather(wire, data, mode, grads=sync_grads)

    def _all_gather(self, wire: Wire, data: Any, mode: str, *, grads: bool) -> Any:
        # Three ways. One tensor on every rank: its rows arrive where they stay. Nested data that is alike on all ranks:
        # fused. Else everybody's whole value to everybody. The heads tell every rank which way all of them go.
        whole = plain(data) or mode == "object" or grads
        mail, refused = _packed(
            lambda: pack(data if whole else comm_gather.summary(data), wire.carries, alone=True),
        )
        with own_error(refused):
            heads = wire.heads(mail)
        specs = [head.bare for head in heads]
        if not whole and specs.count(None) == wire.size:
            rows = [got.open(self.device) for got in wire.all_gather(mail, heads)]
            if len({digest for digest, _ in rows}) == 1:
                return comm_gather.gather_fused(wire, data, [others for _, others in rows], mode)
        if mode != "object" and not grads and None in specs:
            mail = pack(data, wire.carries, alone=True)
            heads = wire.heads(mail)
        part = mail.device if mail.host is None else mail.host
        if comm_gather.check_bare(wire, specs, mode) and part is not None and mode in ("stack", "cat") and not grads:
            shape = (wire.size, *data.shape) if mode == "stack" or data.ndim == 0 else (-1, *data.shape[1:])
            return wire.rows(part).view(data.dtype).view(shape).to(data.device)
        own = mode in ("list", "object") or grads
        values = [got.open(self.device, own=own) for got in wire.all_gather(mail, heads)]
        if not grads:
            return comm_gather.join(wire, values, mode, wire.me)
        needs = comm_reduce.exchange(wire, pack(comm_gather.requires_grad(data), wire.carries))
        return comm_gather.join_with_grad(wire, data, values, needs, mode)

    def all_to_all(self, items: Sequence[Any], *, group: Group = None) -> list[Any]:
        """Send one item to each rank and receive one from each. Every rank of the group must call this.

        Args:
            items: one entry for each rank of the group, in group order, of any picklable kind and any shapes; or a
                tensor (array) whose first dimension is the group's size.
            group: the ranks that take part; None for the world.

        Returns:
            What each rank sent here, in group order.

        Raises:
            CollectiveError: a rank has another number of items; on every rank.

        >>> all_to_all([f"{rank} to {other}" for other in range(2)])  # on rank 0 of 2  # doctest: +SKIP
        ['0 to 0', '1 to 0']
        """
        wire = self._wire("all_to_all", group)
        mails, refused = _packed(lambda: [pack(item, wire.carries) for item in _shares(items, wire.size, "all_to_all")])
        with own_error(refused):
            got = wire.all_to_all(mails)
        return [mail.open(self.device) for mail in got]

    # ---- reductions

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
        results = comm_reduce.reduce_tree(wire, data, ops.parse(op), dst)
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
            return comm_reduce.reduce_into(wire, data, known, out)
        if isinstance(data, torch.Tensor) and not sync_grads:
            return comm_reduce.reduce_one(wire, data.detach(), known)  # the way that has to be as fast as torch's
        results = comm_reduce.reduce_tree(wire, data, known, None, grads=sync_grads)
        needed = [place for place, need in enumerate(comm_gather.requires_grad(data)) if need] if sync_grads else []
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
            return sum_with_grad(comm_reduce.summing(wire), scale, results, inputs)
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
            return comm_reduce.reduce_scatter_one(wire, data.detach(), known)
        if isinstance(data, np.ndarray):
            return self.reduce_scatter(torch.from_numpy(data.copy()), known, group=group).numpy()
        shares = _shares(data, wire.size, "reduce_scatter")
        results = comm_reduce.reduce_tree(wire, shares, known, None)
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
        results = comm_scan.scan_tree(wire, data, ops.parse(op), exclusive=exclusive)
        return trees.fill(data, iter(results))


def _packed(make: Callable[[], Packed]) -> tuple[Packed | Mail, Exception | None]:
    """What ``make`` packs, or else the news for the others that it failed, and why."""
    try:
        return make(), None
    except Exception as error:  # noqa: BLE001  # whatever it is, the other ranks wait for a word
        return Mail.error(f"failed: {error}"), error


def _shares(items: Any, size: int, name: str) -> list[Any]:
    """One item for each rank."""
    if isinstance(items, (torch.Tensor, np.ndarray)) and items.ndim and items.shape[0] == size:
        return list(items)
    if isinstance(items, (list, tuple)) and len(items) == size:
        return list(items)
    raise CollectiveError(
        f"{name} needs a list or tuple of {size} items, one for each rank of the group, not {trees.describe(items)}."
    )
