"""``torch.compile`` in cells, which must know what belongs to nbcomm."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import torch

from .c10d import Undo, put


def follow_compile(given: Iterable[Any]) -> Undo:
    """Let compiled code use our process groups, and the names that cells have without an import, from now on.

    Otherwise Dynamo would trace the code of our groups, although it may only see what torch's groups have. And for a
    name among the built-in ones, Dynamo accepts only a function, or a value that Python itself has there.

    Dynamo is configured at the first compilation, because its import takes seconds.

    Args:
        given: the values that cells have without an import.
    """
    plain, values = torch.compile, [value for value in given if not callable(value)]
    told = False

    @functools.wraps(plain)
    def tell_and_compile(*args: Any, **kwargs: Any) -> Any:
        nonlocal told
        if not told:
            with suppress(Exception):  # another version of torch, or one that cannot compile here and says so itself
                _tell(values)
            told = True
        return plain(*args, **kwargs)

    return put(torch, "compile", tell_and_compile)


def _tell(values: list[Any]) -> None:
    from torch._dynamo import trace_rules

    trace_rules.add(__name__.partition(".")[0])
    for value in values:
        trace_rules._builtin_constant_ids.add(id(value))
