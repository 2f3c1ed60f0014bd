"""How much a process holds in tensors."""

from __future__ import annotations

import gc
from collections.abc import Iterable

import torch

PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Kinds of tensors that have memory of their own; those of other kinds, such as a DTensor, consist of them."""


def held_bytes(but: Iterable[torch.Tensor] = ()) -> int:
    """Return the bytes of all tensors of this process; those that share their memory count once.

    Args:
        but: tensors whose memory is left out.

    >>> before = held_bytes()
    >>> kept = torch.ones(1000)
    >>> view = kept[:10]
    >>> held_bytes() - before, held_bytes(but=[kept]) - before
    (4000, 0)
    """
    gc.collect()
    left_out = {tensor.untyped_storage().data_ptr() for tensor in but}
    found: dict[int, int] = {}
    for each in gc.get_objects():
        if type(each) in PLAIN and each.layout is torch.strided:
            storage = each.untyped_storage()
            if storage.data_ptr() not in left_out:
                found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())
