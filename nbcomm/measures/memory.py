"""The memory of a rank's tensors, by what they are for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from ..errors import TransferError
from .named import value, variables

KINDS = ("weights", "gradients", "optimizer", "buffers", "activations", "other tensors")
"""What tensors are for; activations are what the graph of a result keeps for its backward."""

_DEEP = 100_000
"""Nodes of a graph that are read: a longer one would take seconds."""


def by_kind(names: Sequence[str]) -> dict[str, int]:
    """Return the bytes of the named values by `KINDS`; memory that several share counts once, for the first kind.

    Args:
        names: modules, optimizers and tensors; all of the notebook's variables if there are none.

    Raises:
        TransferError: one of them is none of these.
    """
    given = {name: value(name) for name in names} if names else _own()
    kinds: dict[str, list[Any]] = {kind: [] for kind in KINDS}
    for name, each in given.items():
        if isinstance(each, torch.nn.Module):
            kinds["weights"] += each.parameters()
            kinds["gradients"] += [weight.grad for weight in each.parameters()]
            kinds["buffers"] += each.buffers()
        elif isinstance(each, torch.optim.Optimizer):
            kinds["optimizer"] += [held for state in each.state.values() for held in state.values()]
        elif isinstance(each, torch.Tensor):
            kinds["activations" if each.grad_fn is not None else "other tensors"].append(each)
            kinds["activations"] += _kept_by(each)
        elif names:
            raise TransferError(f"{name} is no module, optimizer or tensor, but {type(each).__name__}.")
    counted: set[int] = set()
    return {kind: _bytes(tensors, counted) for kind, tensors in kinds.items()}


def _own() -> dict[str, Any]:
    return {name: each for name, each in variables().items() if name[0] != "_"}


def _bytes(tensors: Iterable[Any], counted: set[int]) -> int:
    total = 0
    for each in tensors:
        local = each.to_local() if hasattr(each, "to_local") else each  # a DTensor: this rank's part of it
        if not isinstance(local, torch.Tensor) or local.layout is not torch.strided:
            continue
        storage = local.untyped_storage()
        if storage.data_ptr() not in counted:
            counted.add(storage.data_ptr())
            total += storage.nbytes()
    return total


def _kept_by(result: torch.Tensor) -> Iterator[Any]:
    """Yield the tensors that the graph of a result keeps, as its nodes show them; none after its backward."""
    nodes: list[Any] = [result.grad_fn]
    seen: set[Any] = set()
    while nodes and len(seen) < _DEEP:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        nodes += [following for following, _ in node.next_functions]
        for name in dir(node):
            if name.startswith("_saved_"):
                try:
                    yield getattr(node, name)
                except RuntimeError:  # backward has run, and released it
                    continue
        if hasattr(node, "saved_tensors"):  # of a function written in Python
            try:
                yield from node.saved_tensors
            except RuntimeError:
                continue
