"""What DTensor remembers of meshes whose groups are destroyed, and where a rank's part of a tensor is."""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from typing import Any

_ROOM = "torch.distributed.tensor"


def forget_meshes() -> None:
    """Let DTensor forget all that it has cached; call this after groups were destroyed.

    Its caches compare meshes by their shape and ranks: they would answer for a new mesh with an equal old one, whose
    groups no longer exist.
    """
    if _ROOM not in sys.modules:
        return
    with suppress(ImportError):
        importlib.import_module(f"{_ROOM}.debug")  # it clears those in C++
    for name, module in list(sys.modules.items()):
        if name.startswith(_ROOM):
            for called, value in list(vars(module).items()):
                with suppress(Exception):  # another version of torch
                    _clear(called, value)


def _clear(name: str, value: Any) -> None:
    if name.startswith("_clear_") and name.endswith("_cache"):
        value()
    elif hasattr(value, "cache_clear"):
        value.cache_clear()
    elif name.endswith("_cache") and isinstance(value, dict):
        value.clear()


def local_part(tensor: Any) -> tuple[list[int], list[int]]:
    """Return the size of a rank's part of a DTensor, and where in the whole it begins."""
    utils = importlib.import_module(f"{_ROOM}._utils")
    shape, mesh, placements = tensor.shape, tensor.device_mesh, tensor.placements
    size, start = utils.compute_local_shape_and_global_offset(shape, mesh, placements)
    return list(size), list(start)
