"""What each collective is, in plain NumPy: from all ranks' values to all ranks' results. None stands for no result."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

FOLD: dict[str, Any] = {
    "sum": np.add,
    "mean": np.add,
    "product": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}
Values = list[Any]


def fold(values: Values, op: str) -> Any:
    """All values into one."""
    total = functools.reduce(FOLD[op], values)
    return total / len(values) if op == "mean" else total


def on(rank: int, size: int, result: Any) -> Values:
    """A result that one rank has."""
    return [result if place == rank else None for place in range(size)]


def broadcast(xs: Values, src: int) -> Values:
    """Everybody has what ``src`` has."""
    return [xs[src]] * len(xs)


def scatter(xs: Values, src: int) -> Values:
    """Everybody has a row of what ``src`` has."""
    return list(xs[src])


def joined(xs: Values, mode: str) -> Any:
    """All values together."""
    if mode == "list":
        return list(xs)
    return np.stack(xs) if mode == "stack" or xs[0].ndim == 0 else np.concatenate(xs)


def all_gather(xs: Values, mode: str) -> Values:
    """Everybody has all values."""
    return [joined(xs, mode)] * len(xs)


def gather(xs: Values, dst: int, mode: str) -> Values:
    """``dst`` has all values."""
    return on(dst, len(xs), joined(xs, mode))


def all_to_all(xs: Values) -> Values:
    """The matrix of what everybody has for everybody, transposed."""
    return [[x[rank] for x in xs] for rank in range(len(xs))]


def all_reduce(xs: Values, op: str) -> Values:
    """Everybody has the fold of all."""
    return [fold(xs, op)] * len(xs)


def reduce(xs: Values, op: str, dst: int) -> Values:
    """``dst`` has the fold of all."""
    return on(dst, len(xs), fold(xs, op))


def reduce_scatter(xs: Values, op: str) -> Values:
    """Everybody has a share of the fold of all."""
    return np.split(fold(xs, op), len(xs))


def scan(xs: Values, op: str) -> Values:
    """Everybody has the fold of those up to itself."""
    return [fold(xs[: rank + 1], op) for rank in range(len(xs))]


def exclusive_scan(xs: Values, op: str) -> Values:
    """Everybody but the first has the fold of those before itself."""
    return [None, *(fold(xs[:rank], op) for rank in range(1, len(xs)))]


def ring(xs: Values) -> Values:
    """Everybody has what the one before has."""
    return [xs[rank - 1] for rank in range(len(xs))]
