"""Prefix reductions: each rank gets the reduction of all ranks up to itself.

In log2(W) rounds each rank passes on what it has, twice as far each time (Hillis and Steele, "Data parallel
algorithms", 1986). After the round of distance d, a rank holds the reduction of the 2d ranks that end with it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from ..transport import pytrees
from ..transport.exchange import GroupChannel
from ..transport.fusion import fused
from . import reduce_ops
from .reduce import as_tensor, carried, compare, is_number, like

_TAG = 0x5CA0
"""The tag that separates its messages from those that a cell sends."""


def scan_tree(channel: GroupChannel, data: Any, op: reduce_ops.Op, *, exclusive: bool) -> list[Any]:
    """Scan every leaf of ``data``; the results are in walking order.

    Raises:
        CollectiveError: the data differs in structure, shape or dtype, or has a leaf that cannot be reduced.
    """
    found = pytrees.flat(data)
    rows = compare(channel, data, found, op, how=", exclusive" if exclusive else "")
    count = channel.me if exclusive else channel.me + 1
    numbers = iter([reduce_ops.numbers(op, row[:count]) if count else reduce_ops.number_identity(op) for row in rows])
    mine = [as_tensor(leaf, op) for leaf in found if not is_number(leaf)]
    tensors = iter(fused(mine, lambda values: _scan(channel, values, op, count)))  # one series of rounds for all
    return [next(numbers) if is_number(leaf) else like(leaf, next(tensors)) for leaf in found]


def _scan(channel: GroupChannel, flat: torch.Tensor, op: reduce_ops.Op, count: int) -> torch.Tensor:
    rule = reduce_ops.rule(op, flat.dtype, bitwise=True)  # no backend combines anything here
    values = carried(channel, flat, rule.wire)
    combine = reduce_ops.parse("sum") if op.name == "mean" else op
    distance = 1
    while distance < channel.size:
        got = _pass_on(channel, values, distance)
        if got is not None:
            values = reduce_ops.fold(combine, torch.stack([got, values])).to(
                values.dtype
            )  # torch widens small integers
        distance *= 2
    if count == channel.me:  # exclusive: the value of the rank before this one
        got = _pass_on(channel, values, 1)
        if got is None:
            return torch.full_like(flat, reduce_ops.identity(op, rule.result), dtype=rule.result)
        values = got
    if op.name == "mean":
        exact = values.is_floating_point() or values.is_complex()
        values = (values if exact else values.to(torch.float64)) / count
    return values.to(flat.device, rule.result)


def _pass_on(channel: GroupChannel, values: torch.Tensor, distance: int) -> torch.Tensor | None:
    """Send to the rank ``distance`` after this one; return what comes from the rank as far before, if there is one."""
    work = got = None
    moved = torch.view_as_real(values) if values.is_complex() else values
    if channel.me + distance < channel.size:
        work = dist.isend(moved, channel.ranks[channel.me + distance], group=channel.group, tag=_TAG)
    if channel.me >= distance:
        got = torch.empty_like(values)
        into = torch.view_as_real(got) if got.is_complex() else got
        dist.recv(into, channel.ranks[channel.me - distance], group=channel.group, tag=_TAG)
    if work is not None:
        work.wait()
    return got
