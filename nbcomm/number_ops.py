"""The reductions of Python numbers, as the ranks compute them and the pictures draw them."""

from __future__ import annotations

import difflib
import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from .errors import OpError

VALID = "write sum, mean (or avg), min, max, product (or prod), band, bor or bxor"

PAIRS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": operator.add,
    "mean": operator.add,  # and divided at the end
    "min": min,
    "max": max,
    "product": operator.mul,
    "band": operator.and_,
    "bor": operator.or_,
    "bxor": operator.xor,
}
"""The canonical name of each reduction, and the function that combines two values."""

_ALIASES = {"avg": "mean", "prod": "product"}
_MEANT = {"add": "sum", "average": "mean", "maximum": "max", "minimum": "min", "mul": "product", "multiply": "product"}
"""What other libraries call some of them."""


def name_of(op: str) -> str:
    """Return the canonical name of a reduction, written in any letter case.

    Raises:
        OpError: the reduction does not exist; the message names the existing ones.

    >>> name_of("AVG")
    'mean'
    """
    plain = op.strip().lower()
    name = _ALIASES.get(plain, plain)
    if name not in PAIRS:
        near = _MEANT.get(plain) or next(iter(difflib.get_close_matches(plain, PAIRS, 1, 0.85)), "")
        raise OpError(f"There is no reduction {op!r}{f' (did you mean {near}?)' if near else ''}; {VALID}.")
    return name


def reduce(name: str, values: Sequence[Any]) -> Any:
    """Combine Python numbers in the order of the ranks, exactly: an int never passes through a float.

    Args:
        name: one of `PAIRS`.
        values: one or more.

    Raises:
        OpError: the reduction is not defined for these numbers.

    >>> reduce("sum", [2**64, 1]), reduce("mean", [0, 1, 2, 3]), reduce("sum", [True, True])
    (18446744073709551617, 1.5, 2)
    """
    if name in ("min", "max"):
        for value in values:
            if value != value:  # noqa: PLR0124  # one NaN makes the answer NaN, as in torch
                return value
    try:
        total = functools.reduce(PAIRS[name], values)
        if name == "mean":
            return total / len(values)
    except (TypeError, OverflowError) as error:
        kinds = ", ".join(sorted({type(value).__name__ for value in values}))
        raise OpError(f"{name} is not defined for these numbers ({kinds}): {error}.") from error
    # The sum of a single bool (a world of one rank) is an int, as the sum of several is.
    return int(total) if isinstance(total, bool) and name in ("sum", "product") else total


def identity(name: str) -> Any:
    """Return the identity element of a reduction; NaN for mean, which has none."""
    known = {"sum": 0, "product": 1, "min": math.inf, "max": -math.inf, "band": -1, "bor": 0, "bxor": 0}
    return known.get(name, math.nan)
