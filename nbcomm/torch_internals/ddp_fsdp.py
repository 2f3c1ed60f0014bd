"""DDP and FSDP modules, which hold on to a collective that was interrupted inside their forward or backward."""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import weakref
from typing import Any

from .c10d import Undo, dist, put

_ddp_modules: weakref.WeakKeyDictionary[Any, tuple[list[Any], tuple[Any, ...]]] = weakref.WeakKeyDictionary()
"""Each with the parameters that it reduces, and what else its buckets were made of."""

_builtin_hooks: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""The hooks that torch has in C++, of the modules that have one: the module itself keeps others only."""


def follow_modules() -> Undo:
    """From now on, know every DDP module that is made, copied or unpickled."""
    from torch.nn.parallel import DistributedDataParallel

    undo = contextlib.ExitStack()
    if not hasattr(DistributedDataParallel, "_ddp_init_helper"):  # another version of torch
        return undo.close
    make: Any = DistributedDataParallel._ddp_init_helper
    register: Any = DistributedDataParallel._register_builtin_comm_hook

    @functools.wraps(make)
    def init_helper(self: Any, parameters: list[Any], *rest: Any) -> None:
        make(self, parameters, *rest)
        # By weak references, for a parameter's hooks may hold the module.
        _ddp_modules[self] = [weakref.ref(parameter) for parameter in parameters], rest

    @functools.wraps(register)
    def register_builtin(self: Any, kind: Any) -> None:
        register(self, kind)
        _builtin_hooks[self] = kind

    undo.callback(put(DistributedDataParallel, "_ddp_init_helper", init_helper))
    undo.callback(put(DistributedDataParallel, "_register_builtin_comm_hook", register_builtin))
    return undo.close


def interrupted() -> bool:
    """Whether a module is inside its forward or backward: after a cell that failed, nobody will end it."""
    return any(_in_backward(module) for module in list(_ddp_modules)) or any(map(_in_iteration, _fsdp_modules()))


def _in_backward(module: Any) -> bool:
    try:
        module.reducer._check_reducer_finalized()
    except RuntimeError:
        return True
    except AttributeError:  # another version of torch
        return False
    # The first backward with a static graph does not say where it is, and only the third forward notes that it has
    # ended: until then a module may be taken for interrupted, which costs hundredths of a second.
    begun = module.static_graph and module._static_graph_delay_allreduce_enqueued
    return bool(begun and not module._has_rebuilt_buckets)


def _in_iteration(module: Any) -> bool:
    try:
        context = module._get_fsdp_state()._state_ctx
        inside = context.iter_forward_root is not None or context.post_backward_final_callback_queued
    except (AttributeError, RuntimeError):  # another version of torch, or a module that was taken apart
        return False
    return bool(inside)


def reset_interrupted_modules() -> None:
    """Let DDP and FSDP modules begin anew after an abort inside their forward or backward.

    Without it FSDP's ranks issue different collectives. DDP may still wait for gradients of the backward that was cut
    short; worse, where the abort hit while the ranks agreed on new buckets, some have them and some have not, and the
    gradients of one parameter would be added to those of another. Every rank of a module's group must do so.
    """
    for module, (parameters, rest) in list(_ddp_modules.items()):
        try:
            _new_reducer(module, [found() for found in parameters], *rest)
        except Exception:  # noqa: BLE001 - another version of torch, or a module that was taken apart: cells must go on
            with contextlib.suppress(Exception):  # what is left is to forget the last backward
                module.reducer._reset_state()
    for found in _fsdp_modules():
        with contextlib.suppress(Exception):  # only roots may be reset; torch refuses the others
            found.reset_iter_state()
            _discard_gradients(found)


def _new_reducer(module: Any, parameters: list[Any], *rest: Any) -> None:
    """Give a DDP module the buckets that it began with, as torch does for one that was unpickled."""
    frozen = [parameter for parameter in parameters if not parameter.requires_grad]
    try:
        for parameter in frozen:  # the reducer must know them all the same: they may be thawed
            parameter.requires_grad = True
        module.reducer._remove_autograd_hooks()
        module._has_rebuilt_buckets = False
        module._ddp_init_helper(parameters, *rest)
    finally:
        for parameter in frozen:
            parameter.requires_grad = False
    for hook, state in getattr(module, "_comm_hooks", ()):
        dist._register_comm_hook(module.reducer, state, hook)
    if module in _builtin_hooks:
        dist._register_builtin_comm_hook(module.reducer, _builtin_hooks[module])
    if getattr(module, "mixed_precision", None) is not None:
        module.reducer._set_mixed_precision_param_dtype(module.mixed_precision.param_dtype)
    if module.static_graph:
        module._static_graph_delay_allreduce_enqueued = False  # the new reducer learns the graph in its first backward
        module.reducer._set_static_graph()
        module.logger._set_static_graph()


def _discard_gradients(root: Any) -> None:
    """Forget what the backward that was cut short has left on unsharded parameters, where no zero_grad reaches it."""
    for state in root._get_fsdp_state()._state_ctx.all_states:
        for group in state._fsdp_param_groups:
            for parameter in group.fsdp_params:
                parameter.unsharded_accumulated_grad = None
                if hasattr(parameter, "_unsharded_param"):
                    parameter._unsharded_param.grad = None


def _fsdp_modules() -> list[Any]:
    """Every module that was fully sharded, roots and others."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    module_type = getattr(fsdp, "FSDPModule", None)
    # fully_shard makes a subclass for each class of modules that it wraps: none means that it was never called
    if module_type is None or not module_type.__subclasses__() or not hasattr(module_type, "reset_iter_state"):
        return []
    # type(), for isinstance would ask proxies, which may answer by computing something
    return [found for found in gc.get_objects() if issubclass(type(found), module_type)]
