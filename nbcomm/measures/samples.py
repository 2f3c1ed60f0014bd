"""Which samples a rank gets in each epoch."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import torch

from ..errors import TransferError
from .named import value


def epochs(name: str, count: int, most: int) -> list[list[int]]:
    """Return the samples of each epoch, in their order.

    Args:
        name: a sampler or data loader; or a function of the epoch, or a list with an item for each epoch.
        count: the number of epochs.
        most: how many samples, or batches, of each are read.

    Raises:
        TransferError: it is none of these.
    """
    given = value(name)
    inside = (getattr(given, each, None) for each in ("batch_sampler", "sampler"))
    sampler = next((each for each in inside if each is not None), given)
    found: list[list[int]] = []
    with torch.random.fork_rng(devices=[]):  # to look at a sampler takes no numbers from the cells
        for epoch in range(count):
            try:
                found.append(_flat(itertools.islice(_of_epoch(sampler, epoch), most)))
            except Exception as error:  # noqa: BLE001 - the sampler is the user's
                raise TransferError(f"{name} gives no numbers of samples: {type(error).__name__}: {error}") from None
    return found


def _of_epoch(sampler: Any, epoch: int) -> Any:
    if isinstance(sampler, list | tuple):
        return iter(sampler[epoch] if sampler and isinstance(sampler[0], list | tuple) else sampler)
    if callable(sampler):
        return iter(sampler(epoch))
    sampler = copy.copy(sampler)  # its own epoch stays
    inner = getattr(sampler, "sampler", None)  # a batch sampler's
    if inner is not None:
        sampler.sampler = inner = copy.copy(inner)
    for each in (sampler, inner):
        if each is not None and hasattr(each, "set_epoch"):
            each.set_epoch(epoch)
    return iter(sampler)


def _flat(samples: Any) -> list[int]:
    found: list[int] = []
    for each in samples:
        found += _flat(each) if isinstance(each, list | tuple) else [int(each)]
    return found
