"""How gradients flow back through a collective.

The forward pass is done by then, without autograd and fused. These two functions only tie its results to the tensors
that they came from; their backward passes are one fused collective each, which every rank of the group must reach.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

Summing = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]  # the tensors, summed over the ranks of a group


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, total: Summing, scale: float, results: Sequence[torch.Tensor], *_: torch.Tensor) -> Any:
        ctx.total, ctx.scale = total, scale
        return tuple(results)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        summed = ctx.total(grads)
        return None, None, None, *(grad if ctx.scale == 1 else grad * ctx.scale for grad in summed)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, total: Summing, me: int, parts: Sequence[torch.Tensor], *own: torch.Tensor) -> Any:
        ctx.total, ctx.me, ctx.tensors = total, me, len(own)
        return tuple(parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        size = len(grads) // ctx.tensors
        # Every rank holds a gradient for every part; what a rank gets back is the sum for its own.
        return None, None, None, *ctx.total(grads)[ctx.me :: size]


def sum_with_grad(
    total: Summing, scale: float, results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Tie sums over the ranks (or means, with ``scale`` = 1/W) to this rank's inputs."""
    return list(_Sum.apply(total, scale, results, *inputs))  # type: ignore[no-untyped-call]


def gather_with_grad(
    total: Summing, me: int, parts: Sequence[Sequence[torch.Tensor]], own: Sequence[torch.Tensor]
) -> list[list[torch.Tensor]]:
    """Tie what was gathered to what this rank gave: ``parts[i]`` are all ranks' values of ``own[i]``."""
    size = len(parts[0])
    flat = list(_Gather.apply(total, me, [part for row in parts for part in row], *own))  # type: ignore[no-untyped-call]
    return [flat[start : start + size] for start in range(0, len(flat), size)]
