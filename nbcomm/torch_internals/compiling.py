"""``torch.compile`` in cells, which needs to know what of them is nbcomm's."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import torch

from .c10d import Undo, put


def follow_compile(given: Iterable[Any]) -> Undo:
    """From now on, what is compiled may use our process groups, and the names that cells have without an import.

    Dynamo would trace the code of our groups, of which it may only see what torch's have. And where a name is found
    among the built-in ones, Dynamo wants a function, or a value that Python itself has there.

    It is told when somebody compiles, for its import takes seconds.

    Args:
        given: what cells have without an import.
    """
    plain, values = torch.compile, [value for value in given if not callable(value)]
    told = False

    @functools.wraps(plain)
    def tell_and_compile(*args: Any, **kwargs: Any) -> Any:
        nonlocal told
        if not told:
            with suppress(Exception):  # another version of torch, or one that cannot compile here: it says so itself
                _tell(values)
            told = True
        return plain(*args, **kwargs)

    return put(torch, "compile", tell_and_compile)


def _tell(values: list[Any]) -> None:
    from torch._dynamo import trace_rules

    trace_rules.add(__name__.partition(".")[0])
    for value in values:
        trace_rules._builtin_constant_ids.add(id(value))
