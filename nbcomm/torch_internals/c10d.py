"""Torch's own modules under short names, nbcomm's names for parts of them, and hooks where its Python code waits."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed
import torch.distributed.distributed_c10d

# Torch's stubs lack most of what is used here, and its versions differ, so attributes are checked at run time.
dist: Any = torch.distributed
c10d: Any = torch.distributed.distributed_c10d
_C: Any = torch._C._distributed_c10d

PLUGIN = "nbcomm"
"""The name under which torch knows the creator of our groups; users see the backend's real name."""

PASSED_ON = (
    "_allgather_base",
    "_reduce_scatter_base",
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "barrier",
    "broadcast",
    "gather",
    "monitored_barrier",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "scatter",
    "send",
)
"""The methods of a process group through which data moves; which of them exist depends on torch's version."""

ONLY_ADDS = torch.__version__ < (2, 9)  # type: ignore[operator]  # it is no plain text
"""Whether gloo adds in each reduce_scatter, whatever op it is told, without an error."""

Undo = Callable[[], None]
"""A function that restores the previous value."""


def put(owner: Any, name: str, value: Any) -> Undo:
    """Replace an attribute of torch's, and return a function that restores it."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    return lambda: setattr(owner, name, before)


class StandIn:
    """What stands in torch's code in the place of a class: it makes the instances, and is that class otherwise."""

    def __init__(self, plain: Any, make: Callable[..., Any]) -> None:
        self._plain = plain
        self._make = make

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: D102 - it makes an instance
        return self._make(self._plain, *args, **kwargs)

    def __instancecheck__(self, one: Any) -> bool:
        return isinstance(one, self._plain)

    def __subclasscheck__(self, kind: Any) -> bool:
        return issubclass(kind, self._plain)

    def __mro_entries__(self, _: Any) -> tuple[Any, ...]:
        return (self._plain,)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)


def watch_waits(around: Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]) -> Undo:
    """Pass every ``work.wait(…)`` that Python calls through ``around(wait, work, args, kwargs)``."""
    plain = _C.Work.wait

    @functools.wraps(plain)
    def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        return around(plain, work, args, kwargs)

    return put(_C.Work, "wait", wait)


def watch_new_groups(around: Callable[[Callable[..., Any], Any, dict[str, Any]], Any]) -> Undo:
    """Pass every creation of a group through ``around(make, ranks, kwargs)``; ``ranks`` may be None for all."""
    plain = c10d._new_group_with_tag

    @functools.wraps(plain)
    def new_group(ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        return around(functools.partial(plain, ranks, *args, **kwargs), ranks, kwargs)

    return put(c10d, "_new_group_with_tag", new_group)


def hash_of(text: str) -> int:
    """Return a 32-bit hash of a text that is the same in every process."""
    return zlib.crc32(text.encode())
