"""Whether what a function returned is what was right, and where it is not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from ..comm.transport.async_lanes import Handle
from ..short_repr import shortened, sketch
from .memory import PLAIN

_NEAR = 1e-4
"""How far a sum may be off, by its size: ranks add in an order of their own."""

_LONGEST = 120

_ALL = "the result"


class Parts(dict[str, Any]):
    """What a puzzle compares, each part by the words in which a learner reads of it."""


class _Anything:
    def __repr__(self) -> str:
        return "ANYTHING"


ANYTHING = _Anything()
"""What is right where anything is: of a whole result, or of a part of it."""


def difference(got: Any, right: Any, near: float = _NEAR) -> str:
    """Return the first difference between two values in words; "" if they are equal.

    Numbers and tensors of floats may differ by what another order of additions makes of them; a tuple is as good as a
    list, and a tensor with one number as good as that number. A tensor's shape counts, and so does its dtype; its
    device does not.

    Args:
        got: what the function returned.
        right: what it should have.
        near: how far floats may be off, relative to their size, or absolutely below 1.

    >>> difference([0, 1], [0, 2])
    'item 1 is 1, where 2 is right'
    """
    return _difference(got, right, _ALL, near)


def _difference(got: Any, right: Any, what: str, near: float) -> str:
    if right is ANYTHING:
        return ""
    if isinstance(got, Handle):
        return f"{what} is the handle of a call; its wait() returns the result"
    for kinds, compare in _KINDS:
        if isinstance(right, kinds):
            return compare(got, right, what, near)
    return "" if _equal(got, right) else _differs(got, right, what)


def _mappings(got: Any, right: Mapping[Any, Any], what: str, near: float) -> str:
    if not isinstance(got, Mapping):
        return _differs(got, right, what)
    if got.keys() != right.keys():
        return f"{what} has the keys {shown(list(got))}, where {shown(list(right))} are right"
    named = isinstance(right, Parts)
    return _first(((got[key], right[key], _item(what, key if named else f"item {key!r}")) for key in right), near)


def _sequences(got: Any, right: Sequence[Any], what: str, near: float) -> str:
    if not isinstance(got, (list, tuple)):
        return _differs(got, right, what)
    if len(got) != len(right):
        are = "is" if len(right) == 1 else "are"
        return f"{what} has {len(got)} item{'s' * (len(got) != 1)}, where {len(right)} {are} right: {shown(got)}"
    return _first(((got[place], right[place], _item(what, f"item {place}")) for place in range(len(right))), near)


def _numbers(got: Any, right: Any, what: str, near: float) -> str:
    if isinstance(got, torch.Tensor) and got.numel() == 1:
        got = got.item()
    if isinstance(right, float) and isinstance(got, (int, float)) and not isinstance(got, bool):
        close = math.isclose(got, right, rel_tol=near, abs_tol=near) or (math.isnan(got) and math.isnan(right))
        return "" if close else _differs(got, right, what)
    return "" if _equal(got, right) else _differs(got, right, what)


def _equal(got: Any, right: Any) -> bool:
    alike = type(got) is type(right) or all(isinstance(value, (int, float)) for value in (got, right))
    try:
        return alike and bool(got == right)
    except Exception:  # noqa: BLE001 - whatever the learner's value does when it is compared, it is not equal
        return False


def _first(pairs: Iterable[tuple[Any, Any, str]], near: float) -> str:
    return next(filter(None, (_difference(*pair, near) for pair in pairs)), "")


def _item(what: str, item: str) -> str:
    return item if what == _ALL else f"{what}, {item}"


def _tensors(got: Any, right: torch.Tensor, what: str, near: float) -> str:
    if not isinstance(got, torch.Tensor):
        return _differs(got, right, what) if right.ndim else _numbers(got, right.item(), what, near)
    if type(got) not in PLAIN:
        makes = "; its full_tensor() is one" * hasattr(got, "full_tensor")
        return f"{what} is a {type(got).__name__}, where a plain tensor is right{makes}"
    got = got.detach().cpu()
    if got.shape != right.shape:
        return f"{what} has the shape {tuple(got.shape)}, where {tuple(right.shape)} is right"
    if got.dtype != right.dtype:
        return f"{what} has the dtype {_dtype(got)}, where {_dtype(right)} is right"
    if got.dtype.is_floating_point or got.dtype.is_complex:
        wrong = ~torch.isclose(got, right, rtol=near, atol=near, equal_nan=True)
    else:
        wrong = got != right
    if not wrong.any():
        return ""
    place = tuple(wrong.nonzero()[0].tolist())
    at = f"{'item ' if what == _ALL else what}[{', '.join(map(str, place))}]" if place else what
    return f"{at} is {got[place].item():.6g}, where {right[place].item():.6g} is right"


def _differs(got: Any, right: Any, what: str) -> str:
    one, other = shown(got), shown(right)
    if one == other:  # a list, where a tensor is right
        one, other = f"the {type(got).__name__} {one}", f"the {type(right).__name__} {other}"
    return f"{what} is {one}, where {other} is right"


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def shown(value: Any) -> str:
    """Return a value in a few words."""
    return shortened(sketch(value), _LONGEST)


_KINDS: tuple[tuple[Any, Callable[[Any, Any, str, float], str]], ...] = (
    (torch.Tensor, _tensors),
    (Mapping, _mappings),
    ((list, tuple), _sequences),
    ((int, float), _numbers),
)
"""How a value is compared with a right one of these types; any other must be equal to it."""
