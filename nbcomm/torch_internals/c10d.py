"""Torch's own modules under short names, and nbcomm's names for parts of them."""

from __future__ import annotations

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


def hash_of(text: str) -> int:
    """Return a 32-bit hash of a text that is the same in every process."""
    return zlib.crc32(text.encode())
