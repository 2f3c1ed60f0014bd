"""What ``fabric.setup`` and ``fabric.setup_dataloaders`` return."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.utils import data

if TYPE_CHECKING:
    from ..comm import Communicator


class Module(torch.nn.Module):
    """A module that trains on all ranks, and otherwise is like the one it was made of.

    Args:
        forward_module: what is called, DistributedDataParallel or the module itself.
        original: whose attributes and state this one has.
    """

    def __init__(self, forward_module: torch.nn.Module, original: torch.nn.Module) -> None:
        super().__init__()
        self.forward_module = forward_module
        self._original = [original]  # in a list, or its parameters would be there under two names

    @property
    def module(self) -> torch.nn.Module:
        """The module that was set up."""
        return self._original[0]

    @property
    def wrapped(self) -> bool:
        """Whether gradients are synchronized."""
        return self.forward_module is not self.module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module, under DistributedDataParallel."""
        return self.forward_module(*args, **kwargs)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """That of the module that was set up."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """That of the module that was set up."""
        return self.module.load_state_dict(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)


def ready(module: torch.nn.Module, device: torch.device | None, world_size: int) -> Module:
    """Set a module up. Every rank must call this.

    Args:
        module: it is moved, and its parameters become those of rank 0.
        device: where to; None leaves it where it is.
        world_size: how many ranks there are.
    """
    if device is not None:
        module = module.to(device)
    trains = any(parameter.requires_grad for parameter in module.parameters())
    if world_size == 1 or not trains:
        return Module(module, module)
    where = next(module.parameters()).device
    return Module(DistributedDataParallel(module, device_ids=[where] if where.type == "cuda" else None), module)


def shared(loader: data.DataLoader[Any], world_size: int, rank: int) -> data.DataLoader[Any]:
    """A dataloader like this one of which each rank has a share, or this one where that is not for us to say.

    Raises:
        TypeError: it has a sampler or batch sampler of its own, which we do not know how to share.
    """
    if world_size == 1 or isinstance(loader.dataset, data.IterableDataset):
        return loader
    if isinstance(loader.sampler, data.DistributedSampler):
        return loader
    if loader.batch_sampler is not None and type(loader.batch_sampler) is not data.BatchSampler:
        raise TypeError(
            f"setup_dataloaders cannot share a dataloader with a batch sampler of its own "
            f"({type(loader.batch_sampler).__name__}). Let that deal its batches to ranks, and pass "
            "use_distributed_sampler=False."
        )
    shuffle = isinstance(loader.sampler, data.RandomSampler)
    if not shuffle and not isinstance(loader.sampler, data.SequentialSampler):
        raise TypeError(
            f"setup_dataloaders cannot share a dataloader with a sampler of its own ({type(loader.sampler).__name__}). "
            "Let that deal its samples to ranks, and pass use_distributed_sampler=False."
        )
    sampler: data.DistributedSampler[Any] = data.DistributedSampler(
        loader.dataset, world_size, rank, shuffle=shuffle, seed=torch.initial_seed() % 2**31, drop_last=False
    )
    return data.DataLoader(
        loader.dataset,
        batch_size=loader.batch_size,
        sampler=sampler,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        drop_last=loader.drop_last,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )


class DataLoader:
    """A dataloader that deals in a new order each time, and whose batches come on this rank's device.

    Args:
        loader: the dataloader; all else that is asked of this one is asked of it.
        device: where batches go; None leaves them where they are.
        comm: moves them.
    """

    def __init__(self, loader: data.DataLoader[Any], device: torch.device | None, comm: Communicator) -> None:
        self._loader = loader
        self._device = device
        self._comm = comm
        self._epoch = 0

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self._loader.sampler, data.DistributedSampler):
            self._loader.sampler.set_epoch(self._epoch)
        self._epoch += 1
        for batch in self._loader:
            yield batch if self._device is None else self._comm.to_device(batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class Uninitialized(TorchFunctionMode):
    """Within it the functions of ``torch.nn.init`` leave tensors as they are."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)
