"""``torch.compile`` in cells, which must know what belongs to nbcomm."""

from __future__ import annotations

import functools
from contextlib import suppress
from typing import Any

import torch

from .c10d import Undo, put


def follow_compile() -> Undo:
    """Let compiled code use our process groups from now on.

    Otherwise Dynamo would trace their code, although it may only see what torch's groups have. It is configured at the
    first compilation, because its import takes seconds.
    """
    plain, told = torch.compile, False

    @functools.wraps(plain)
    def tell_and_compile(*args: Any, **kwargs: Any) -> Any:
        nonlocal told
        if not told:
            with suppress(Exception):  # another version of torch, or one that cannot compile here and says so itself
                _tell()
            told = True
        return plain(*args, **kwargs)

    return put(torch, "compile", tell_and_compile)


def _tell() -> None:
    from torch._dynamo import trace_rules

    trace_rules.add(__name__.partition(".")[0])
