"""The reductions: their names, and what each of them means for a dtype and for Python numbers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ... import number_ops
from ...errors import OpError


@dataclass(frozen=True)
class Op:
    """One reduction.

    Attributes:
        name: the one name under which it is shown.
        wire: what torch.distributed is asked for; a mean is sent as a sum and divided afterwards.
        pair: combines two Python numbers (or two integer tensors, for the bitwise ones).
    """

    name: str
    wire: Any  # dist.ReduceOp.RedOpType, which torch does not export for annotations
    pair: Callable[[Any, Any], Any]

    @property
    def bitwise(self) -> bool:
        """Whether it works on the bits of integers and bools."""
        return self.name in ("band", "bor", "bxor")

    @property
    def linear(self) -> bool:
        """Whether the gradient of the result is the same for every rank's data, whatever the data is."""
        return self.name in ("sum", "mean")

    def scale(self, count: int) -> float:
        """Return the factor for a sum over ``count`` ranks, if the op is linear."""
        return 1.0 / count if self.name == "mean" else 1.0

    @property
    def ordered(self) -> bool:
        """Whether it selects a value by comparing."""
        return self.name in ("min", "max")


_WIRES = {
    "sum": dist.ReduceOp.SUM,
    "mean": dist.ReduceOp.SUM,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "product": dist.ReduceOp.PRODUCT,
    "band": dist.ReduceOp.BAND,
    "bor": dist.ReduceOp.BOR,
    "bxor": dist.ReduceOp.BXOR,
}
_OPS = {name: Op(name, wire, number_ops.PAIRS[name]) for name, wire in _WIRES.items()}


def parse(op: object) -> Op:
    """Return the reduction of a name in any letter case, or of a ``torch.distributed.ReduceOp``.

    Raises:
        OpError: there is no such reduction; the message lists the existing ones.

    >>> parse("AVG").name, parse(dist.ReduceOp.PRODUCT).name
    ('mean', 'product')
    """
    if isinstance(op, Op):
        return op
    if type(op) is str and op in _OPS:
        return _OPS[op]
    if isinstance(op, str):
        return _OPS[number_ops.name_of(op)]
    if isinstance(op, (dist.ReduceOp, dist.ReduceOp.RedOpType)):
        if op == dist.ReduceOp.AVG:
            return _OPS["mean"]
        for known in _OPS.values():
            if op == known.wire:
                return known
    name = getattr(op, "__name__", "")
    if callable(op) and name in number_ops.PAIRS:
        raise OpError(f'There is no reduction {op!r}; write "{name}", in quotes.')
    raise OpError(f"There is no reduction {op!r}; {number_ops.VALID}.")


# ---- tensors

# No backend adds these up itself. Integers wrap in the wider type exactly as they would in their own, so a sum that is
# cut back to its own type is right. Minimum and maximum are right because the wider type holds every value.
_WIDER = {
    torch.int16: torch.int32,
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
    torch.uint64: torch.int64,  # the same 64 bits: see the error in rule()
    torch.float8_e4m3fn: torch.float32,
    torch.float8_e4m3fnuz: torch.float32,
    torch.float8_e5m2: torch.float32,
    torch.float8_e5m2fnuz: torch.float32,
}


@dataclass(frozen=True)
class Rule:
    """How one reduction treats one dtype.

    Attributes:
        wire: the dtype in which the values are sent and combined.
        result: the dtype of the result.
        folded: the backend cannot combine these; they are gathered, and combined on every rank.
    """

    wire: torch.dtype
    result: torch.dtype
    folded: bool = False


def rule(op: Op, dtype: torch.dtype, *, bitwise: bool = True) -> Rule:
    """Return how ``op`` treats tensors of ``dtype``.

    The dtype is kept, with two exceptions. The mean of integers or bools has torch's default dtype: the sum is taken in
    int64, so it is exact; that of int64 in float64, since it could wrap. The sum or product of bools is int64, as in
    ``torch.sum``.

    Args:
        op: the reduction.
        dtype: that of the data.
        bitwise: whether the backend supports band, bor and bxor (NCCL does not).

    Raises:
        OpError: the dtype does not have this reduction.
    """
    return _rule(op.name, dtype, torch.get_default_dtype(), bitwise=bitwise)


@functools.cache
def _rule(name: str, dtype: torch.dtype, default: torch.dtype, *, bitwise: bool) -> Rule:
    op = _OPS[name]
    real = dtype.is_floating_point
    if op.bitwise and (real or dtype.is_complex):
        raise OpError(
            f"{name} is a bitwise operation, which is not defined for {_short(dtype)}; use sum, mean, min, max or "
            "product."
        )
    if op.ordered and dtype.is_complex:
        raise OpError(f"{name} needs an order, which {_short(dtype)} does not have; use sum, mean or product.")
    if dtype == torch.uint64 and name in ("mean", "min", "max"):
        raise OpError(f"torch cannot compute the {name} of uint64; convert to int64 or float64 first.")
    if dtype == torch.bool:
        if op.bitwise or op.ordered:
            return Rule(torch.uint8, torch.bool, folded=op.bitwise and not bitwise)
        return Rule(torch.int64, default if name == "mean" else torch.int64)
    if name == "mean" and not (real or dtype.is_complex):
        return Rule(torch.float64 if dtype == torch.int64 else torch.int64, default)
    if name == "mean" and dtype == torch.float16:
        return Rule(torch.float32, dtype)  # the sum of values whose mean fits may exceed 65504
    folded = (dtype.is_complex and name == "product") or (op.bitwise and not bitwise)
    return Rule(_WIDER.get(dtype, dtype), dtype, folded)


def identity(op: Op, dtype: torch.dtype) -> Any:
    """Return the value that changes nothing: 0 for a sum, infinity for a minimum; NaN for the mean of nothing."""
    if op.name == "mean":
        return math.nan
    if op.name in ("sum", "product", "bor", "bxor"):
        return int(op.name == "product")
    if dtype == torch.bool:
        return op.name != "max"
    if op.name == "band":
        return torch.iinfo(dtype).max if torch.iinfo(dtype).min == 0 else -1
    if dtype.is_floating_point:
        return math.inf if op.name == "min" else -math.inf
    return torch.iinfo(dtype).max if op.name == "min" else torch.iinfo(dtype).min


def fold(op: Op, rows: torch.Tensor) -> torch.Tensor:
    """Combine the first dimension of ``rows``; differentiable where the reduction is."""
    if op.bitwise:
        return functools.reduce(op.pair, rows.unbind(0))
    if op.name == "product":
        return rows.prod(0)
    if op.ordered:
        return rows.amin(0) if op.name == "min" else rows.amax(0)
    return rows.sum(0) if op.name == "sum" else rows.mean(0)


# ---- Python numbers


def numbers(op: Op, values: Sequence[Any]) -> Any:
    """Combine Python numbers in the order of the ranks, exactly; see `nbcomm.number_ops.reduce`."""
    return number_ops.reduce(op.name, values)


def number_identity(op: Op) -> Any:
    """Return the Python number that changes nothing under ``op``; NaN for the mean of nothing."""
    return number_ops.identity(op.name)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
