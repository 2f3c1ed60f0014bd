"""Where two arrays of one shape and dtype differ: which elements, the first of them, and by how much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .structure import blocks, bytes_of

_BLOCK = 1 << 22
"""Bytes that are compared in one step; the intermediate results take several times as much."""

_WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""A dtype of so many bytes that can do all that a tensor can."""

Array = Any
"""A dense tensor, or an array."""


@dataclass
class Largest:
    """The largest difference found, and its place in the flat array, from 0."""

    amount: Any = 0
    place: int = -1

    def take(self, amounts: Array, places: Array) -> None:
        """Take further differences into account; of equal ones the first counts, and NaN is none."""
        known = ~np.isnan(amounts)
        if known.any():
            amounts, places = amounts[known], places[known]
            best = int(np.argmax(amounts))
            if amounts[best] > self.amount:
                self.amount, self.place = amounts[best].item(), int(places[best])


class Elements:
    """The differences of two arrays.

    Args:
        mine: an array.
        theirs: another, of the same shape and dtype.
        atol: numbers that are no further apart count as equal.

    Attributes:
        count: how many elements differ.
        total: how many elements there are.
        first: the place of the first difference in the flat array; -1 if there is none.
        close: how many differ by no more than ``atol``.
        absolute: the largest difference, those within ``atol`` included.
        relative: the largest one as a fraction of the other's value, where that is not 0.
    """

    def __init__(self, mine: Array, theirs: Array, atol: float = 0.0) -> None:
        self.count = self.total = self.close = 0
        self.first = -1
        self.absolute, self.relative = Largest(), Largest()
        self._atol = atol
        for place in blocks(tuple(mine.shape), mine.dtype.itemsize, _BLOCK):
            self._compare(mine[place], theirs[place], mine.dtype.itemsize)

    def _compare(self, mine: Array, theirs: Array, itemsize: int) -> None:
        unlike = _unlike(bytes_of(mine), bytes_of(theirs), itemsize)
        start, places = self.total, np.flatnonzero(unlike)
        self.total += len(unlike)
        if not len(places):
            return
        a, b = _numbers(mine, places), _numbers(theirs, places)
        if a is not None and b is not None:
            with np.errstate(all="ignore"):
                apart = _apart(a, b)
                self.absolute.take(apart, places + start)
                size = np.abs(b if b.dtype.kind in "fc" else b.astype(np.float64))
                self.relative.take(np.where(size != 0, apart / size, np.nan), places + start)
                if self._atol > 0:
                    beyond = ~((apart <= self._atol) | (a == b) | ((a != a) & (b != b)))  # noqa: PLR0124 - that is NaN
                    self.close += len(places) - int(beyond.sum())
                    places = places[beyond]
        self.count += len(places)
        if self.first < 0 and len(places):
            self.first = start + int(places[0])


def element(array: Array, place: int) -> tuple[list[int], str]:
    """Return an element's index, from its place in the flat array, and the element in words that identify it."""
    index = [int(at) for at in np.unravel_index(place, tuple(array.shape))]
    return index, _written(array[tuple(index)])


def _written(one: Array) -> str:
    if isinstance(one, torch.Tensor):
        if one.dtype in (torch.float16, torch.bfloat16) or "float8" in str(one.dtype):
            return str(np.float32(one.float().item()))
        narrow = {torch.float32: np.float32, torch.complex64: np.complex64}.get(one.dtype)
        return str(one.item()) if narrow is None else str(narrow(one.item()))
    return str(one) if isinstance(one, np.number | np.bool_) else repr(one.item() if hasattr(one, "item") else one)


def bits(array: Array, place: int) -> str:
    """Return the bytes of an element, the highest first: they tell one NaN from another."""
    index = (*(int(at) for at in np.unravel_index(place, tuple(array.shape))), ...)
    return f"0x{bytes_of(array[index]).tobytes()[::-1].hex()}"


def _unlike(mine: Array, theirs: Array, itemsize: int) -> Array:
    """Return a mask of the elements whose bytes differ."""
    if itemsize in (1, 2, 4, 8):
        width = np.dtype(f"u{itemsize}")
        return np.not_equal(mine.view(width), theirs.view(width))
    return np.any(np.not_equal(mine.reshape(-1, itemsize), theirs.reshape(-1, itemsize)), axis=1)


def _numbers(block: Array, places: Array) -> Array | None:
    """Return elements of a block as numbers for arithmetic; None if they are no numbers, or bools."""
    if isinstance(block, torch.Tensor):
        flat = block.resolve_conj().resolve_neg().cpu().reshape(-1)
        # torch up to 2.9 cannot index each dtype.
        whole = _WHOLE.get(flat.itemsize, flat.dtype)
        flat = flat.view(whole)[torch.from_numpy(places)].view(flat.dtype)
        if flat.is_complex():
            flat = flat.to(torch.complex128)
        elif flat.is_floating_point():
            flat = flat.to(torch.float64)
        array = flat.numpy()
    else:
        array = np.asarray(block).reshape(-1)[places]
    if array.dtype.kind == "f":
        return array.astype(np.result_type(array.dtype, np.float64))
    if array.dtype.kind == "c":
        return array.astype(np.result_type(array.dtype, np.complex128))
    return array if array.dtype.kind in "iu" else None


def _apart(a: Array, b: Array) -> Array:
    if a.dtype.kind in "iu":  # exact, also where a - b does not fit into the dtype
        high, low = np.maximum(a, b), np.minimum(a, b)
        return high.astype(np.uint64) - low.astype(np.uint64)
    return np.abs(a - b)
