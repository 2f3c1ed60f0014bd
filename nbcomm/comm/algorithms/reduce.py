"""Reductions of nested data over one group.

One tensor goes straight to the backend: no rank asks another what it holds. Anything else begins with one small
exchange, in which the ranks compare structure, shapes and dtypes and, since they are tiny, combine the Python numbers.
Then the tensors follow, fused into one message for each dtype and device.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence
from numbers import Number
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ...analysis import mismatch
from ...errors import CollectiveError, MismatchError, OpError
from ...rank_spec import named
from ...torch_internals.c10d import ONLY_ADDS
from ..transport import pytrees
from ..transport.exchange import GroupChannel, own_error, reduce_scatter_single
from ..transport.fusion import fused
from ..transport.packets import ALONE_FROM, Packet, as_bytes, pack, plain
from . import reduce_ops


def reduce_tree(
    channel: GroupChannel, data: Any, op: reduce_ops.Op, dst: int | None, *, grads: bool = False
) -> list[Any]:
    """Reduce every leaf of ``data``; the results are in walking order.

    Args:
        channel: the group.
        data: one tensor, array or number, or nested data of them.
        op: the reduction.
        dst: the global rank that needs the results, or None if all do. Elsewhere they are not defined.
        grads: whether gradients will flow back, so the ranks must agree about which leaves need them.

    Raises:
        CollectiveError: the data differs in structure, shape or dtype, or has a leaf that cannot be reduced.
    """
    if isinstance(data, torch.Tensor) and not grads:
        return [reduce_one(channel, data.detach(), op, dst)]
    found = pytrees.flat(data)
    how = "" if dst is None else f", dst={dst}"
    numbers = [reduce_ops.numbers(op, values) for values in compare(channel, data, found, op, grads=grads, how=how)]
    tensors = [as_tensor(leaf, op) for leaf in found if not is_number(leaf)]
    reduced = iter(reduce_many(channel, tensors, op, dst))
    combined = iter(numbers)
    return [next(combined) if is_number(leaf) else like(leaf, next(reduced)) for leaf in found]


def reduce_into(channel: GroupChannel, data: Any, op: reduce_ops.Op, out: Any) -> Any:
    """Reduce every leaf of ``data`` into those of ``out``, which may be ``data``, and return ``out``.

    Raises:
        CollectiveError: ``out`` does not fit; nothing has moved then.
    """
    pairs = _pairs(channel, data, out, op)
    if isinstance(data, torch.Tensor):
        target = out.detach()
        if out is not data:
            target.copy_(data.detach())
        result = reduce_one(channel, target, op, given_up=True)
        if result.data_ptr() != target.data_ptr():
            target.copy_(result)
        # The collective wrote without autograd: a backward that still needs the old values must fail, not give wrong
        # gradients.
        torch.autograd.graph.increment_version(out)
        return out
    results = reduce_tree(channel, data, op, None)
    for (_, target), result in zip(pairs, results, strict=True):
        if isinstance(target, torch.Tensor):
            target.detach().copy_(result)
        else:
            target[...] = result
    return out


def compare(  # noqa: PLR0913  # by keyword
    channel: GroupChannel, data: Any, found: Sequence[Any], op: reduce_ops.Op, *, grads: bool = False, how: str = ""
) -> list[tuple[Any, ...]]:
    """Compare the ranks' data before any tensor moves; return its Python numbers, for each a tuple of all ranks'.

    Args:
        channel: the group.
        data: of this rank.
        found: its leaves.
        op: the reduction.
        grads: whether the ranks must agree about which leaves require grad.
        how: the arguments, besides the op, that the ranks must agree about.

    Raises:
        MismatchError: the ranks' ops or arguments differ.
        CollectiveError: the data differs in structure, shape or dtype, or has a leaf that cannot be reduced.
    """
    call = f"{op.name}{how}"
    refused: Exception | None = None
    try:
        _check_leaves(channel, data, found, op)
        outline = pytrees.outline(data, lambda leaf: _word(leaf, grads=grads))
        digest = hashlib.blake2b(f"{call} {outline}".encode(), digest_size=16).digest()
        packet = pack((digest, [leaf for leaf in found if is_number(leaf)]), channel.carries)
    except Exception as error:  # noqa: BLE001  # whatever it is, the other ranks wait for a word
        refused, packet = error, Packet.error(f"failed: {error}")
    rows = exchange(channel, packet, refused)
    if len({digest for digest, _ in rows}) > 1:
        said = [(path, _word(leaf, grads=grads)) for path, leaf in pytrees.leaves(data)]
        answers = exchange(channel, pack((call, said), channel.carries))
        calls = [f"{channel.call} with {other}" for other, _ in answers]
        if len(set(calls)) > 1:
            raise MismatchError(mismatch.other_op(channel.ranks, channel.placed(calls)))
        raise CollectiveError(_difference(channel, [words for _, words in answers]))
    return list(zip(*(numbers for _, numbers in rows), strict=True))


def exchange(channel: GroupChannel, packet: Packet, refused: Exception | None = None) -> list[Any]:
    """Send every rank's value to every rank.

    Raises:
        CollectiveError: a rank sent an error. The rank itself raises its own exception.
    """
    with own_error(refused):
        heads = channel.heads(packet)
    return [got.open(channel.device, own=False) for got in channel.all_gather(packet, heads)]


def reduce_many(
    channel: GroupChannel, tensors: Sequence[torch.Tensor], op: reduce_ops.Op, dst: int | None = None
) -> list[torch.Tensor]:
    """Reduce tensors, the small ones fused: one collective for each dtype and device."""
    return fused(
        tensors,
        lambda values: reduce_one(channel, values, op, dst, given_up=True),
        alone=lambda tensor: reduce_one(channel, tensor, op, dst),
        alone_from=ALONE_FROM,
    )


def reduce_one(
    channel: GroupChannel,
    tensor: torch.Tensor,
    op: reduce_ops.Op,
    dst: int | None = None,
    *,
    given_up: bool = False,
) -> torch.Tensor:
    """Reduce one detached tensor into a new one.

    Args:
        channel: the group.
        tensor: is not changed, unless ``given_up``: then the result may use its memory.
        op: the reduction.
        dst: as in `reduce_tree`.
        given_up: the caller no longer needs ``tensor``.
    """
    dtype = tensor.dtype
    rule = reduce_ops.rule(op, dtype, bitwise=channel.bitwise(tensor.device))
    if op.ordered and rule.wire.is_floating_point:
        return _extreme(channel, carried(channel, tensor, rule.wire), op, dst).to(tensor.device, rule.result)
    straight = rule.wire is rule.result is dtype and dst is None and not rule.folded
    if straight and channel.takes(tensor):
        whole = given_up and tensor.is_contiguous()
        values = tensor if whole else tensor.clone(memory_format=torch.contiguous_format)
        channel.reduced(values, op.wire)
        return values.div_(channel.size) if op.name == "mean" else values
    values = carried(channel, tensor, rule.wire)
    if rule.folded:
        rows = channel.rows(as_bytes(values)).view(values.dtype).view(channel.size, *values.shape)
        return reduce_ops.fold(op, rows).to(tensor.device, rule.result)
    if values.data_ptr() == tensor.data_ptr() and not given_up:
        values = values.clone()
    _combine(channel, torch.view_as_real(values) if values.is_complex() else values, op, dst)
    return _finished(channel, values, op, rule).to(tensor.device)


def _combine(channel: GroupChannel, values: torch.Tensor, op: reduce_ops.Op, dst: int | None) -> None:
    if dst is None:
        dist.all_reduce(values, op.wire, group=channel.group)
    else:
        dist.reduce(values, dst, op.wire, group=channel.group)


def _extreme(channel: GroupChannel, values: torch.Tensor, op: reduce_ops.Op, dst: int | None) -> torch.Tensor:
    """Return the minimum or maximum, NaN where any rank has one: a backend compares, and loses some of them.

    They travel as the infinity that wins; only if one comes out, the ranks ask each other which of them were NaN.
    """
    nans, end = values.isnan(), math.inf if op.name == "max" else -math.inf
    found = values.masked_fill(nans, end)
    _combine(channel, found, op, dst)
    if dst is not None or bool((found == end).any()):  # where all have the result, all know this
        marks = nans.byte()
        _combine(channel, marks, reduce_ops.parse("max"), dst)
        found.masked_fill_(marks.bool(), math.nan)
    return found


def reduce_scatter_one(channel: GroupChannel, tensor: torch.Tensor, op: reduce_ops.Op) -> torch.Tensor:
    """Reduce one detached tensor, whose first dimension the group divides, and return this rank's share of it."""
    rule = reduce_ops.rule(op, tensor.dtype, bitwise=channel.bitwise(tensor.device))
    length = tensor.shape[0] // channel.size
    if rule.folded or op.ordered or (ONLY_ADDS and op.wire != dist.ReduceOp.SUM):
        return reduce_one(channel, tensor, op)[channel.me * length : (channel.me + 1) * length].clone()
    values = carried(channel, tensor, rule.wire)
    share = values.new_empty((length, *values.shape[1:]))
    moved, into = (torch.view_as_real(values), torch.view_as_real(share)) if values.is_complex() else (values, share)
    reduce_scatter_single(into, moved, op=op.wire, group=channel.group)
    return _finished(channel, share, op, rule).to(tensor.device)


def carried(channel: GroupChannel, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the values in order, in the dtype and on the device in which the group can combine them."""
    check_dense("data", tensor, channel.call)
    if not channel.carries(tensor) or (tensor.is_cpu and channel.host.type != "cpu"):
        tensor = tensor.to(channel.host)
    return tensor.to(dtype).resolve_conj().resolve_neg().contiguous()


def _finished(channel: GroupChannel, values: torch.Tensor, op: reduce_ops.Op, rule: reduce_ops.Rule) -> torch.Tensor:
    if op.name == "mean":
        if not (values.is_floating_point() or values.is_complex()):
            values = values.to(torch.float64)  # the sum is exact so far; the division should lose as little as possible
        values.div_(channel.size)
    return values if values.dtype == rule.result else values.to(rule.result)


# ---- leaves


def is_number(leaf: Any) -> bool:
    """Return whether a leaf is a Python number, which is sent with the comparison and combined exactly."""
    return _is_number_type(type(leaf))  # type: ignore[arg-type]  # mypy doubts that a class is hashable


@functools.lru_cache(maxsize=1024)  # called for every leaf
def _is_number_type(cls: Any) -> bool:
    return issubclass(cls, Number) and not issubclass(cls, np.generic)


def as_tensor(leaf: Any, op: reduce_ops.Op) -> torch.Tensor:
    """Return a leaf that can be reduced by ``op``, as a detached tensor."""
    if isinstance(leaf, torch.Tensor):
        return leaf.detach()
    # A copy: numpy arrays may be read-only, or have a layout that torch does not support.
    copied = torch.from_numpy(np.array(leaf))
    whole = not (copied.is_floating_point() or copied.is_complex() or copied.dtype == torch.uint64)
    return copied.double() if op.name == "mean" and whole else copied  # NumPy's own mean of integers is a float64


def like(leaf: Any, result: torch.Tensor) -> Any:
    """Return a result in the kind of the leaf: a tensor, an array or a NumPy number."""
    if isinstance(leaf, torch.Tensor):
        return result
    array = result.numpy()
    return array[()] if isinstance(leaf, np.generic) else array


def _check_leaves(channel: GroupChannel, data: Any, found: Sequence[Any], op: reduce_ops.Op) -> None:
    """Check every leaf, and each kind of tensor once."""
    known = set()
    for place, leaf in enumerate(found):
        kind = (leaf.dtype, leaf.device) if isinstance(leaf, torch.Tensor) else None
        if kind not in known:
            try:
                _check_leaf(channel, "data", leaf, op)
            except OpError:
                _check_leaf(channel, list(pytrees.leaves(data))[place][0], leaf, op)  # once more, now with its path
                raise
            if kind is not None:
                known.add(kind)


def _check_leaf(channel: GroupChannel, path: str, leaf: Any, op: reduce_ops.Op) -> None:
    if is_number(leaf):
        return
    if isinstance(leaf, np.ndarray):
        check_array(path, leaf, op.name)
    if isinstance(leaf, (np.ndarray, np.generic)) and leaf.dtype.kind in "biufc":
        leaf = as_tensor(leaf, op)
    if not isinstance(leaf, torch.Tensor):
        raise OpError(
            f"{op.name} is not defined for {path}, {pytrees.describe(leaf)}: only tensors, arrays and numbers can "
            "be reduced. Use all_gather or gather to collect other values."
        )
    check_dense(path, leaf, channel.call)
    reduce_ops.rule(op, leaf.dtype, bitwise=channel.bitwise(leaf.device))


def check_array(path: str, array: np.ndarray[Any, Any], name: str) -> None:
    """Raise for an array that is more than its numbers: a mask or a unit would be lost."""
    if type(array) in (np.ndarray, np.memmap):
        return
    masked = isinstance(array, np.ma.MaskedArray)
    remedy = f"{path}.filled(VALUE), with a value for what is masked" if masked else f"np.asarray({path})"
    kind = type(array).__name__
    raise OpError(f"{name} is not defined for {path}, a {kind}, of which only the numbers would arrive: pass {remedy}.")


def check_dense(path: str, tensor: torch.Tensor, name: str) -> None:
    """Raise for a tensor whose values are not its memory: torch would give wrong values, or end the rank."""
    if plain(tensor):
        return
    if hasattr(tensor, "full_tensor"):
        kind, remedy = "a DTensor, of which each rank has a part", ".full_tensor(), or .to_local() for the parts"
    elif tensor.is_quantized:
        kind, remedy = "a quantized tensor", ".dequantize()"
    elif tensor.is_nested:
        kind, remedy = "a nested tensor", ".to_padded_tensor(0)"
    elif tensor.layout != torch.strided:
        kind, remedy = f"a sparse tensor ({str(tensor.layout).removeprefix('torch.')})", ".to_dense()"
    elif tensor.is_meta:
        raise OpError(f"{name} is not defined for {path}, which is on the meta device and has no values.")
    else:
        return  # a subclass that works like a plain tensor
    raise OpError(f"{name} is not defined for {path}, {kind}: pass {path}{remedy}.")


def _pairs(channel: GroupChannel, data: Any, out: Any, op: reduce_ops.Op) -> list[tuple[Any, Any]]:
    """Return the leaves of ``data``, each with its leaf of ``out``, if the results can be written there."""
    here, there = pytrees.flat(data), pytrees.flat(out)
    if pytrees.outline(data, lambda _: "leaf") != pytrees.outline(out, lambda _: "leaf"):
        raise CollectiveError(
            f"out= is {pytrees.describe(out)} and data {pytrees.describe(data)}: they need the same structure."
        )
    pairs = list(zip(here, there, strict=True))
    for leaf, target in pairs:
        if not isinstance(target, (torch.Tensor, np.ndarray)) or type(target) is not type(leaf):
            raise CollectiveError(
                f"out= is written in place, which {pytrees.describe(target)} does not support; leave out= out."
            )
        like = as_tensor(leaf, op) if isinstance(leaf, np.ndarray) else leaf
        for word, each in (("data", like), ("out", target)):
            if isinstance(each, torch.Tensor):
                check_dense(word, each, channel.call)
        result = reduce_ops.rule(op, like.dtype, bitwise=channel.bitwise(like.device)).result
        has = target.dtype if isinstance(target, torch.Tensor) else torch.from_numpy(np.empty(0, target.dtype)).dtype
        if tuple(target.shape) != tuple(leaf.shape) or has != result:
            raise CollectiveError(
                f"out= is {pytrees.describe(target)}, but the {op.name} of {pytrees.describe(leaf)} is "
                f"{str(result).removeprefix('torch.')}, of the same shape. Pass a tensor like that as out=."
            )
    return pairs


def _word(leaf: Any, *, grads: bool) -> str:
    if is_number(leaf):
        return "a number"
    return pytrees.describe(leaf) + (" that requires grad" if grads and getattr(leaf, "requires_grad", False) else "")


def _difference(channel: GroupChannel, words: Sequence[Sequence[tuple[str, str]]]) -> str:
    """Name the first place at which the ranks differ."""
    maps = [dict(pairs) for pairs in words]
    paths = list(dict.fromkeys(path for pairs in words for path, _ in pairs))
    for path in paths:
        here = [found.get(path, "nothing") for found in maps]
        if len(set(here)) > 1:
            return mismatch.other_data(path, channel.ranks, channel.placed(here))
    who = named(channel.ranks)
    return f"The ranks passed containers of different types to one reduction; {who} must pass the same."
