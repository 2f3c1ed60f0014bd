"""How each kind of wrapped module is made to keep its gradients on this rank for now."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import torch

from ...errors import CollectiveError


def pause_gradient_sync(module: torch.nn.Module) -> AbstractContextManager[Any]:
    """Return a context in which backward of ``module`` does not synchronize gradients.

    Raises:
        CollectiveError: the module is not wrapped by DDP or FSDP, so there is nothing to pause.
    """
    if callable(no_sync := getattr(module, "no_sync", None)):  # DDP, FSDP1, and modules with the same interface
        found: AbstractContextManager[Any] = no_sync()
        return found
    if callable(getattr(module, "set_requires_gradient_sync", None)):
        return _paused_fsdp2(module)
    raise CollectiveError(
        f"{type(module).__name__} is not wrapped by DistributedDataParallel or FSDP, so its gradients are never "
        "synchronized and there is nothing to pause. Wrap it first, or leave no_backward_sync out."
    )


@contextlib.contextmanager
def _paused_fsdp2(module: Any) -> Any:
    module.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        module.set_requires_gradient_sync(True)
