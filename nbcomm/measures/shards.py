"""Which part of a tensor this rank holds."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import TransferError
from ..torch_internals import dtensor
from .named import value

_MOST = 8
"""Tensors of a module that are shown."""


def parts(name: str) -> list[dict[str, Any]]:
    """Describe this rank's part of each tensor of a value: of one tensor, or of a module's parameters.

    Returns:
        For each its ``name`` and ``shape``; ``whole``, ``start`` and ``size``, which are this rank's part and have two
        dimensions, the first that are cut; and ``how`` it is placed. A tensor that is no DTensor is whole on this rank.
        At most eight are told, with how many ``more`` there are.

    Raises:
        TransferError: it is neither.
    """
    given = value(name)
    if isinstance(given, torch.nn.Module):
        tensors: dict[str, torch.Tensor] = {f"{name}.{each}": weight for each, weight in given.named_parameters()}
    elif isinstance(given, torch.Tensor):
        tensors = {name: given}
    else:
        raise TransferError(f"{name} is no tensor or module, but {type(given).__name__}.")
    shown = [_part(called, tensor) for called, tensor in list(tensors.items())[:_MOST]]
    return [{**each, "more": len(tensors) - len(shown)} for each in shown]


def _part(name: str, tensor: Any) -> dict[str, Any]:
    shape = list(tensor.shape)
    size, start, how, cut = shape, [0] * len(shape), "", set()
    if hasattr(tensor, "placements"):
        size, start = dtensor.local_part(tensor)
        mesh = tensor.device_mesh
        names = mesh.mesh_dim_names or [f"dimension {number}" * (mesh.ndim > 1) for number in range(mesh.ndim)]
        how = ", ".join(_placed(placed, over) for placed, over in zip(tensor.placements, names, strict=True))
        cut = {placed.dim % max(1, len(shape)) for placed in tensor.placements if hasattr(placed, "dim")}
    down, across = _sides(cut)
    return {
        "name": name,
        "shape": shape,
        "whole": (_at(shape, down, 1), _at(shape, across, 1)),
        "start": (_at(start, down, 0), _at(start, across, 0)),
        "size": (_at(size, down, 1), _at(size, across, 1)),
        "how": how,
    }


def _placed(placement: Any, over: str) -> str:
    """Write a placement as torch's users do, in all of its versions: "Shard(0) over tp"."""
    kind = type(placement).__name__.lstrip("_")
    cut = f"({placement.dim})" if hasattr(placement, "dim") else ""
    return f"{kind}{cut}{' over ' + over if over else ''}"


def _sides(cut: set[int]) -> tuple[int, int]:
    """Return the dimensions that are rows and columns of the chart: those that are cut come first.

    >>> _sides({1}), _sides({0}), _sides({0, 3}), _sides({2})
    ((0, 1), (0, 1), (0, 3), (0, 2))
    """
    rest = [each for each in (0, 1) if each not in cut]
    down, across = sorted([*sorted(cut), *rest][:2])
    return down, across


def _at(extents: list[int], dimension: int, otherwise: int) -> int:
    return extents[dimension] if dimension < len(extents) else otherwise
