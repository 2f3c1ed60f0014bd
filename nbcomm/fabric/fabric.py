"""``fabric`` in a cell: Lightning Fabric's interface over the world of the cell.

Names, arguments, defaults and results are Fabric's own (``tests/peers`` compares call by call with Lightning Fabric
2.6). ``docs/differences.md`` lists the deliberate differences: an in-place reduction never breaks a graph, integers
keep their values, and no call can hang or end a rank.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NoReturn

import numpy as np
import torch

from ..annotations import as_written
from ..comm import Communicator
from ..comm.transport import pytrees
from . import wrappers
from .checkpoints import Checkpoints


@as_written
class Fabric(Checkpoints):
    """Fabric's interface to a `Communicator`.

    Args:
        comm: the world's communicator.
    """

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self.loggers: list[Any] = []

    def __repr__(self) -> str:
        return f"<nbcomm's fabric: rank {self.global_rank} of {self.world_size} on {self.device}>"

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"nbcomm's fabric has no {name!r}. All of Lightning Fabric works in cells, too: "
            "from lightning.fabric import Fabric; fabric = Fabric(devices=world_size, strategy='ddp')."
        )

    # ---- who and where

    @property
    def world_size(self) -> int:
        """The number of ranks in the world."""
        return self._comm.world_size

    @property
    def global_rank(self) -> int:
        """This process's rank in the world, from 0."""
        return self._comm.rank

    @property
    def local_rank(self) -> int:
        """This rank's number on its node, from 0."""
        return self._comm.local_rank

    @property
    def node_rank(self) -> int:
        """The number of this node, from 0."""
        return self._comm.node_rank

    @property
    def is_global_zero(self) -> bool:
        """Whether this is rank 0 of the world."""
        return self._comm.is_global_zero

    @property
    def device(self) -> torch.device:
        """The device of this rank."""
        return self._comm.device

    # ---- starting

    def launch(self, function: Callable[..., Any] | None = None, *args: Any, **kwargs: Any) -> Any:
        """Call a function with this object and the arguments; without one do nothing, because the ranks already run."""
        return None if function is None else function(self, *args, **kwargs)

    @staticmethod
    def seed_everything(seed: int | None = None, workers: bool | None = None, verbose: bool = True) -> int:  # noqa: FBT001, FBT002
        """Seed Python, NumPy and torch; return the seed.

        Args:
            seed: None takes the environment's PL_GLOBAL_SEED, or 0.
            workers: whether workers of dataloaders are seeded too; torch seeds them from the seed in any case.
            verbose: print the seed on rank 0.
        """
        if seed is None:
            seed = int(os.environ.get("PL_GLOBAL_SEED", "0"))
        os.environ["PL_GLOBAL_SEED"] = str(seed)
        os.environ["PL_SEED_WORKERS"] = str(int(workers is not False))
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - a cell's code uses the global generator
        torch.manual_seed(seed)
        if verbose and os.environ.get("RANK", "0") == "0":
            print(f"Seed set to {seed}")  # noqa: T201 - as Fabric does
        return seed

    # ---- collectives

    def barrier(self, name: str | None = None) -> None:
        """Wait until every rank has arrived here. Every rank must call this."""
        self._comm.barrier(name)

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Give every rank the object of ``src``. Every rank must call this."""
        return self._comm.broadcast(obj, src)

    def all_gather(self, data: Any, group: Any = None, sync_grads: bool = False) -> Any:  # noqa: FBT001, FBT002
        """Collect every rank's tensors on every rank. Every rank of the group must call this.

        Args:
            data: a tensor, array or number, or a nested collection of them; numbers become tensors. Other values stay
                this rank's own.
            group: the ranks that take part; None for the world.
            sync_grads: let gradients flow back.

        Returns:
            Tensors of shape (W, …); in a world of one rank the tensors themselves.
        """
        data = self._tensors(data)
        if self.world_size == 1:
            return data
        return self._only_tensors(
            data, lambda tensors: self._comm.all_gather(tensors, "stack", sync_grads, group=group)
        )

    def all_reduce(self, data: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Combine every rank's tensors, in place. Every rank of the group must call this.

        Args:
            data: a tensor, array or number, or a nested collection of them; numbers become tensors. Other values stay
                this rank's own.
            group: the ranks that take part; None for the world.
            reduce_op: "mean", "sum", or another name or ``ReduceOp``.

        Returns:
            The reduced tensors: the ones that were passed, except where that would be wrong. For a tensor that belongs
            to a graph, and for a mean of integers, the passed tensor stays as it is and the result is another tensor.
        """
        data = self._tensors(data)
        if self.world_size == 1:
            return data

        def reduced(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
            results = self._comm.all_reduce([tensor.detach() for tensor in tensors], reduce_op, group=group)
            return [_placed(tensor, result) for tensor, result in zip(tensors, results, strict=True)]

        return self._only_tensors(data, reduced)

    def _tensors(self, data: Any) -> Any:
        return pytrees.map_leaves(lambda leaf: _as_tensor(leaf, self.device), data)

    @staticmethod
    def _only_tensors(data: Any, function: Callable[[list[torch.Tensor]], list[torch.Tensor]]) -> Any:
        tensors = [leaf for leaf in pytrees.flat(data) if isinstance(leaf, torch.Tensor)]
        results = iter(function(tensors))
        return pytrees.map_leaves(lambda leaf: next(results) if isinstance(leaf, torch.Tensor) else leaf, data)

    # ---- around them

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print on local rank 0 of every node."""
        if self.local_rank == 0:
            print(*args, **kwargs)  # noqa: T201 - its purpose

    def rank_zero_first(self, local: bool = False) -> AbstractContextManager[None]:  # noqa: FBT001, FBT002
        """Run the block on rank 0 first, then on the others. Every rank must enter it."""
        return self._comm.rank_zero_first(local)

    def to_device(self, obj: Any) -> Any:
        """Move a module (in place), a tensor, or a nested collection to this rank's device."""
        return self._comm.to_device(obj)

    def no_backward_sync(self, module: torch.nn.Module, enabled: bool = True) -> AbstractContextManager[Any]:  # noqa: FBT001, FBT002
        """Skip the synchronization of gradients in backward, to accumulate them. Use it as ``with``."""
        if not isinstance(module, wrappers.Module):
            raise TypeError(
                "You need to set up the model first before you can call fabric.no_backward_sync(): "
                "model = fabric.setup(model)."
            )
        if not module.wrapped:
            return contextlib.nullcontext()
        return self._comm.no_backward_sync(module.forward_module, enabled)

    # ---- training

    def setup(
        self,
        module: torch.nn.Module,
        *optimizers: torch.optim.Optimizer,
        scheduler: Any = None,
        move_to_device: bool = True,
        **_: Any,
    ) -> Any:
        """Make a module (and its optimizers) ready to train on all ranks. Every rank must call this.

        Args:
            module: it is wrapped by DistributedDataParallel if it has trainable parameters and there are several ranks.
            *optimizers: the optimizers of the module's parameters.
            scheduler: a scheduler of a learning rate; it is returned after the optimizers.
            move_to_device: move the module to this rank's device first.

        Returns:
            The module alone, or a tuple of it, the optimizers and the scheduler, if there is one. Its
            ``training_step``, and the methods that its ``mark_forward_method`` marks, synchronize gradients as a call
            of the module does.
        """
        if isinstance(module, wrappers.Module):
            raise ValueError("This module has been set up already; use what fabric.setup returned.")  # noqa: TRY004
        ready = wrappers.ready(module, self.device if move_to_device else None, self.world_size)
        if not optimizers:
            return ready
        return (ready, *optimizers) if scheduler is None else (ready, *optimizers, scheduler)

    def setup_module(self, module: torch.nn.Module, move_to_device: bool = True, **_: Any) -> Any:  # noqa: FBT001, FBT002
        """Call `setup` without optimizers."""
        return self.setup(module, move_to_device=move_to_device)

    def setup_optimizers(self, *optimizers: torch.optim.Optimizer) -> Any:
        """Return the optimizer, or a tuple of them, unchanged."""
        return optimizers[0] if len(optimizers) == 1 else optimizers

    def setup_dataloaders(
        self,
        *dataloaders: torch.utils.data.DataLoader[Any],
        use_distributed_sampler: bool = True,
        move_to_device: bool = True,
    ) -> Any:
        """Let each rank load its own share of the data.

        Args:
            *dataloaders: dataloaders; those of iterable datasets are not sharded.
            use_distributed_sampler: give them a ``DistributedSampler``, which shuffles if they did, in a new order at
                each iteration. The seed of the order is the environment's PL_GLOBAL_SEED, which `seed_everything` sets,
                or 0.
            move_to_device: move each batch to this rank's device.

        Returns:
            The dataloader, or a list of them.
        """
        made = [
            wrappers.DataLoader(
                wrappers.shared(loader, self.world_size, self.global_rank) if use_distributed_sampler else loader,
                self.device if move_to_device else None,
                self._comm,
            )
            for loader in dataloaders
        ]
        return made[0] if len(made) == 1 else made

    def backward(self, tensor: torch.Tensor, *args: Any, model: Any = None, **kwargs: Any) -> None:  # noqa: ARG002
        """Call ``tensor.backward(...)``. With a module that was set up, every rank must call this."""
        tensor.backward(*args, **kwargs)

    def clip_gradients(  # noqa: PLR0913, PLR0917 - Fabric's signature
        self,
        module: torch.nn.Module,  # noqa: ARG002
        optimizer: torch.optim.Optimizer,
        clip_val: float | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = True,  # noqa: FBT001, FBT002
    ) -> torch.Tensor | None:
        """Clip the gradients of the optimizer's parameters by value, or by norm and then return the norm before.

        Raises:
            ValueError: both ``clip_val`` and ``max_norm`` are given, or neither.
        """
        if (clip_val is None) == (max_norm is None):
            raise ValueError("clip_gradients takes one of clip_val= and max_norm=.")
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        if max_norm is not None:
            norm: torch.Tensor = torch.nn.utils.clip_grad_norm_(
                parameters, max_norm, norm_type, error_if_nonfinite=error_if_nonfinite
            )
            return norm
        assert clip_val is not None  # noqa: S101 - for mypy
        torch.nn.utils.clip_grad_value_(parameters, clip_val)
        return None

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context that changes nothing: full precision is Fabric's default."""
        return contextlib.nullcontext()

    def init_module(self, empty_init: bool | None = None) -> AbstractContextManager[Any]:  # noqa: FBT001
        """Make the parameters of modules on this rank's device; uninitialized with ``empty_init=True``."""
        stack = contextlib.ExitStack()
        stack.enter_context(self.device)
        if empty_init:
            stack.enter_context(wrappers.Uninitialized())
        return stack

    def init_tensor(self) -> AbstractContextManager[Any]:
        """Make tensors on this rank's device."""
        stack = contextlib.ExitStack()
        stack.enter_context(self.device)
        return stack

    # ---- without callbacks and loggers

    def call(self, hook_name: str, *args: Any, **kwargs: Any) -> None:
        """Call a hook of all callbacks; there are none here."""

    def log(self, name: str, value: Any, step: int | None = None) -> None:
        """Log to all loggers; there are none here."""

    def log_dict(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log to all loggers; there are none here."""


def _as_tensor(leaf: Any, device: torch.device) -> Any:
    if isinstance(leaf, bool):
        return torch.tensor(leaf, dtype=torch.uint8, device=device)
    if isinstance(leaf, int):
        exact = torch.int32 if -(2**31) <= leaf < 2**31 else torch.int64
        return torch.tensor(leaf, dtype=exact, device=device)
    if isinstance(leaf, float):
        return torch.tensor(leaf, dtype=torch.float32, device=device)
    if isinstance(leaf, np.ndarray):
        return torch.from_numpy(leaf).to(device)
    return leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf


def _placed(tensor: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """Return the result, copied into the passed tensor unless that would be wrong."""
    if tensor.requires_grad or tensor.dtype != result.dtype:
        return result
    return tensor.copy_(result)
