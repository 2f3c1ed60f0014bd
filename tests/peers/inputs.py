"""Random inputs that every rank can make for itself: a seed and a rank give a rank's value."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("uint8", "int8", "int32", "int64")

shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
leaves = st.tuples(st.just("tensor"), shapes, st.sampled_from(("float32", "float64", "int64", "int32", "uint8")))
numbers = st.sampled_from(("int", "float", "bool")).map(lambda kind: (kind,))
texts = st.text(alphabet="abcdefgh", max_size=6).map(lambda text: ("text", text))


def trees(leaf: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Nested descriptions of data."""
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=3).map(lambda parts: ("list", parts)),
            st.lists(inner, min_size=1, max_size=3).map(lambda parts: ("tuple", parts)),
            st.dictionaries(st.sampled_from("wxyz"), inner, min_size=1, max_size=3).map(lambda d: ("dict", d)),
        ),
        max_leaves=5,
    )


def made(described: Any, seed: int, rank: int) -> Any:
    """The value that a rank has; small whole numbers, so that sums are exact in every dtype."""
    chance = np.random.default_rng([seed, rank])

    def make(this: Any) -> Any:  # noqa: PLR0911  # one for each kind
        kind, *rest = this
        if kind == "tensor":
            shape, dtype = rest
            return torch.from_numpy(chance.integers(0, 5, shape)).to(getattr(torch, dtype)).reshape(shape)
        if kind == "int":
            return int(chance.integers(0, 100))
        if kind == "float":
            return float(chance.integers(0, 100)) / 4
        if kind == "bool":
            return bool(chance.integers(0, 2))
        if kind == "text":
            return f"{rest[0]}{rank}"
        if kind == "dict":
            return {key: make(value) for key, value in rest[0].items()}
        return (list if kind == "list" else tuple)(make(part) for part in rest[0])

    return make(described)


def same(left: Any, right: Any) -> bool:
    """Whether two values are equal in kind, shape, dtype and content."""
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and left.shape == right.shape and torch.equal(left, right)
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    return bool(left == right)
