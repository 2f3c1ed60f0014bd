"""The wrappers that ``fabric.setup`` and ``fabric.setup_dataloaders`` return."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.utils import data

if TYPE_CHECKING:
    from ..comm import Communicator


_STEPS = ("training_step", "validation_step", "test_step", "predict_step")
"""The methods of a LightningModule that a loop calls in place of the module itself."""


class Module(torch.nn.Module):
    """A module that trains on all ranks, and otherwise behaves like the original.

    Args:
        forward_module: the module that is called, DistributedDataParallel or the original.
        original: the module whose attributes and state this one has.
    """

    def __init__(self, forward_module: torch.nn.Module, original: torch.nn.Module) -> None:
        super().__init__()
        self.forward_module = forward_module
        self._forward_methods = set(_STEPS)
        self._original = [original]  # in a list, or its parameters would have two names

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
        """Return the state dict of the module that was set up."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load a state dict into the module that was set up."""
        return self.module.load_state_dict(*args, **kwargs)

    def mark_forward_method(self, method: str | Callable[..., Any]) -> None:
        """Let a method of the module be called under DistributedDataParallel, as ``forward`` is.

        Raises:
            TypeError: it is neither a method nor the name of one.
            ValueError: it is ``forward`` itself.
            AttributeError: the module has no such method.
        """
        name = method if isinstance(method, str) else getattr(method, "__name__", None)
        if name is None:
            raise TypeError(f"mark_forward_method takes a method or its name, not {method!r}.")
        if name == "forward":
            raise ValueError("forward is called under DistributedDataParallel already; mark another method.")
        if not inspect.ismethod(getattr(self.module, name, None)):
            raise AttributeError(f"{type(self.module).__name__} has no method {name!r} that could be marked.")
        self._forward_methods.add(name)

    def no_sync(self) -> AbstractContextManager[Any]:
        """Return DistributedDataParallel's context in which gradients stay on this rank."""
        forward: Any = self.forward_module
        return forward.no_sync() if self.wrapped else contextlib.nullcontext()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            found = getattr(self.module, name)
        if not self.wrapped or not inspect.ismethod(found):
            return found
        return self._through_forward(name) if name in self._forward_methods else self._checked(found)

    def __setattr__(self, name: str, value: Any) -> None:
        original = self.__dict__.get("_original")
        if original is None:  # in __init__
            super().__setattr__(name, value)
            return
        own = name in self.__dict__ or name in self._modules or hasattr(type(self), name)
        if own:
            super().__setattr__(name, value)
        if not own or (not name.startswith("_") and hasattr(original[0], name)):
            setattr(original[0], name, value)  # the original's methods read it there

    def _through_forward(self, name: str) -> Callable[..., Any]:
        """Return a method of the module that DistributedDataParallel calls as if it were the module's forward."""
        module = self.module

        @functools.wraps(getattr(module, name))
        def call(*args: Any, **kwargs: Any) -> Any:
            before = module.__dict__.get("forward")

            def put_back() -> None:
                if before is None:
                    module.__dict__.pop("forward", None)
                else:
                    module.__dict__["forward"] = before

            def instead(*args: Any, **kwargs: Any) -> Any:
                put_back()  # the method may call the module itself
                return getattr(module, name)(*args, **kwargs)

            module.__dict__["forward"] = instead
            try:
                return self.forward_module(*args, **kwargs)
            finally:
                put_back()

        return call

    def _checked(self, method: Any) -> Callable[..., Any]:
        """Return a method that refuses to call the module with gradients, which would not be synchronized."""

        def refuse(*_: Any) -> None:
            if torch.is_grad_enabled():
                name = method.__name__
                raise RuntimeError(
                    f"{type(self.module).__name__}.{name}() bypasses DistributedDataParallel, so each "
                    f"rank would train with its own gradients. Call model.mark_forward_method({name!r}) once after "
                    "fabric.setup, or call it within torch.no_grad()."
                )

        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            with contextlib.ExitStack() as stack:
                for each in self.module.modules():
                    stack.callback(each.register_forward_pre_hook(refuse).remove)
                return method(*args, **kwargs)

        return call


def ready(module: torch.nn.Module, device: torch.device | None, world_size: int) -> Module:
    """Set up a module. Every rank must call this.

    Args:
        module: the module; it is moved, and its parameters become those of rank 0.
        device: the device to move it to; None leaves it where it is.
        world_size: the number of ranks.
    """
    if device is not None:
        module = module.to(device)
    trains = any(parameter.requires_grad for parameter in module.parameters())
    if world_size == 1 or not trains:
        return Module(module, module)
    where = next(module.parameters()).device
    return Module(DistributedDataParallel(module, device_ids=[where] if where.type == "cuda" else None), module)


def shared(loader: data.DataLoader[Any], world_size: int, rank: int) -> data.DataLoader[Any]:
    """Return a copy of a dataloader that gives each rank a share; or the same one, if it is not for us to shard.

    Raises:
        TypeError: it has its own sampler or batch sampler, which we cannot shard.
    """
    if world_size == 1 or isinstance(loader.dataset, data.IterableDataset):
        return loader
    dealt = getattr(loader.batch_sampler, "sampler", loader.sampler)
    if isinstance(dealt, data.DistributedSampler):
        return loader
    if loader.batch_sampler is not None and type(loader.batch_sampler) is not data.BatchSampler:
        raise TypeError(
            f"setup_dataloaders cannot shard a dataloader that has its own batch sampler "
            f"({type(loader.batch_sampler).__name__}). Let that sampler distribute its batches to the ranks, and pass "
            "use_distributed_sampler=False."
        )
    shuffle = isinstance(dealt, data.RandomSampler)
    if not shuffle and not isinstance(dealt, data.SequentialSampler):
        raise TypeError(
            f"setup_dataloaders cannot shard a dataloader that has its own sampler ({type(dealt).__name__}). "
            "Let that sampler distribute its samples to the ranks, and pass use_distributed_sampler=False."
        )
    # Not torch's own seed: it may differ between ranks, and the shares must come from the same order.
    seed = int(os.environ.get("PL_GLOBAL_SEED", "0"))
    sampler: data.DistributedSampler[Any] = data.DistributedSampler(
        loader.dataset, world_size, rank, shuffle=shuffle, seed=seed, drop_last=False
    )
    whole = loader.batch_sampler
    batches = None if whole is None else data.BatchSampler(sampler, whole.batch_size, whole.drop_last)
    mine = copy.copy(loader)  # of its own class, with all its options
    # Its __setattr__ refuses these. Persistent workers belong to the original.
    mine.__dict__.update(sampler=sampler, batch_sampler=batches, _iterator=None)
    return mine


class DataLoader:
    """A dataloader with a new order at each iteration, whose batches are on this rank's device.

    Args:
        loader: the dataloader; other attributes are read from it.
        device: the device of the batches; None leaves them where they are.
        comm: moves the batches.
    """

    def __init__(self, loader: data.DataLoader[Any], device: torch.device | None, comm: Communicator) -> None:
        self._loader = loader
        self._device = device
        self._comm = comm
        self._epoch = 0

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        samplers = [self._loader.sampler, getattr(self._loader.batch_sampler, "sampler", None)]
        for sampler in {id(each): each for each in samplers}.values():
            if callable(set_epoch := getattr(sampler, "set_epoch", None)):
                set_epoch(self._epoch)
        self._epoch += 1
        for batch in self._loader:
            yield batch if self._device is None else self._comm.to_device(batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class Uninitialized(TorchFunctionMode):
    """A context in which the functions of ``torch.nn.init`` leave tensors as they are."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)
