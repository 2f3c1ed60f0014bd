"""Many small tensors as one: concatenated by dtype and device to be sent, and split afterwards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import torch

Work = Callable[[torch.Tensor], torch.Tensor]


def fused(
    tensors: Sequence[torch.Tensor], work: Work, *, alone: Work | None = None, alone_from: int = 0
) -> list[torch.Tensor]:
    """Apply a function to tensors, to all of one dtype and device at once.

    Args:
        tensors: detached, of any shapes.
        work: takes n values in a row, and returns (…, n) for them.
        alone: takes one tensor, and returns (…, *its shape); for tensors large enough to be sent alone.
        alone_from: the size in bytes from which a tensor is sent alone, if there is ``alone``.

    Returns:
        The result for each tensor, in memory of its own: (…, *its shape).
    """
    results: dict[int, torch.Tensor] = {}
    buckets: dict[tuple[torch.dtype, torch.device], list[int]] = defaultdict(list)
    for place, tensor in enumerate(tensors):
        if alone is not None and tensor.nbytes >= alone_from:
            results[place] = alone(tensor)
        else:
            buckets[tensor.dtype, tensor.device].append(place)
    for places in buckets.values():
        chosen = [tensors[place] for place in places]
        results.update(
            zip(places, _apart(work(torch.cat([tensor.reshape(-1) for tensor in chosen])), chosen), strict=True)
        )
    return [results[place] for place in range(len(tensors))]


def _apart(values: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    lead = values.shape[:-1]
    shapes = [tensor.shape for tensor in like]
    if shapes.count(shapes[0]) == len(shapes):  # one call for all, instead of two for each
        parts = values.view(*lead, len(like), *shapes[0]).unbind(len(lead))
    else:
        split = values.split([shape.numel() for shape in shapes], dim=-1)
        parts = tuple(part.reshape((*lead, *shape)) for part, shape in zip(split, shapes, strict=True))
    # Not slices of one memory: they would keep each other alive, and count as modified together.
    return [part.clone(memory_format=torch.contiguous_format) for part in parts]
