"""DDP and FSDP modules, which keep the state of a collective that was interrupted in their forward or backward."""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import weakref
from typing import Any

from .c10d import Undo, dist, put

_ddp_modules: weakref.WeakKeyDictionary[Any, tuple[list[Any], tuple[Any, ...]]] = weakref.WeakKeyDictionary()
"""The DDP modules, each with the parameters that it reduces, and the other arguments that made its buckets."""

_builtin_hooks: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""The modules' hooks that torch has in C++: the module itself keeps only other hooks."""


def follow_modules() -> Undo:
    """Record every DDP module that is made, copied or unpickled from now on."""
    from torch.nn.parallel import DistributedDataParallel

    undo = contextlib.ExitStack()
    if not hasattr(DistributedDataParallel, "_ddp_init_helper"):  # another version of torch
        return undo.close
    make: Any = DistributedDataParallel._ddp_init_helper
    register: Any = DistributedDataParallel._register_builtin_comm_hook

    @functools.wraps(make)
    def init_helper(self: Any, parameters: list[Any], *rest: Any) -> None:
        make(self, parameters, *rest)
        # By weak references, because a parameter's hooks may hold the module.
        _ddp_modules[self] = [weakref.ref(parameter) for parameter in parameters], rest

    @functools.wraps(register)
    def register_builtin(self: Any, kind: Any) -> None:
        register(self, kind)
        _builtin_hooks[self] = kind

    undo.callback(put(DistributedDataParallel, "_ddp_init_helper", init_helper))
    undo.callback(put(DistributedDataParallel, "_register_builtin_comm_hook", register_builtin))
    return undo.close


def interrupted() -> bool:
    """Tell whether a module is inside its forward or backward, which nothing will end after a failed cell."""
    return any(_in_backward(module) for module in list(_ddp_modules)) or any(map(_in_iteration, _fsdp_modules()))


def _in_backward(module: Any) -> bool:
    try:
        module.reducer._check_reducer_finalized()
    except RuntimeError:
        return True
    except AttributeError:  # another version of torch
        return False
    # The first backward with a static graph does not show its progress, and only the third forward notes its end.
    # Until then a module may be mistaken for an interrupted one, which costs hundredths of a second.
    begun = module.static_graph and module._static_graph_delay_allreduce_enqueued
    return bool(begun and not module._has_rebuilt_buckets)


def _in_iteration(module: Any) -> bool:
    try:
        context = module._get_fsdp_state()._state_ctx
        inside = context.iter_forward_root is not None or context.post_backward_final_callback_queued
    except (AttributeError, RuntimeError):  # another version of torch, or a dismantled module
        return False
    return bool(inside)


def reset_interrupted_modules() -> None:
    """Reset DDP and FSDP modules after an abort inside their forward or backward.

    Without it FSDP's ranks issue different collectives. DDP may still wait for gradients of the aborted backward;
    worse, if the abort came while the ranks agreed on new buckets, only some ranks have them, and the gradients of one
    parameter would be added to those of another. Every rank of a module's group must call this.
    """
    for module, (parameters, rest) in list(_ddp_modules.items()):
        try:
            _new_reducer(module, [found() for found in parameters], *rest)
        except Exception:  # noqa: BLE001 - another version of torch, or a dismantled module: cells must still run
            with contextlib.suppress(Exception):  # at least forget the last backward
                module.reducer._reset_state()
    for found in _fsdp_modules():
        with contextlib.suppress(Exception):  # only roots may be reset; torch refuses the others
            if hasattr(found, "reset_iter_state"):
                found.reset_iter_state()
            else:
                _begin_iteration_anew(found._get_fsdp_state())
            _discard_gradients(found)


def _new_reducer(module: Any, parameters: list[Any], *rest: Any) -> None:
    """Give a DDP module its initial buckets, as torch does for an unpickled module."""
    frozen = [parameter for parameter in parameters if not parameter.requires_grad]
    try:
        for parameter in frozen:  # the reducer must know them, because they may be unfrozen later
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


def _begin_iteration_anew(root: Any) -> None:
    """Do what a root's `reset_iter_state` does, which torch has from 2.13 on.

    What it gathers or reduces at that moment is not waited for: the groups have been aborted.
    """
    if not root._is_root:
        raise RuntimeError("It is no root.")
    stream, shared = root._device_handle.current_stream(), root._comm_ctx
    scattered = getattr(shared, "reduce_scatter_states", None)  # torch 2.12; before, one at most
    alone = [] if scattered is not None else [shared.reduce_scatter_state]
    _await_events(stream, shared.all_gather_state, *alone, *(scattered or ()))
    shared.all_gather_state = None
    if scattered is not None:
        scattered.clear()
    else:
        shared.reduce_scatter_state = None
    shared.post_forward_order.clear()
    for state in root._state_ctx.all_states:
        state._modules_to_run_forward.clear()
        state._training_state = type(state._training_state).IDLE
        for group in _param_groups(state):
            _begin_group_anew(group, stream)
    root._state_ctx.iter_forward_root = None
    root._state_ctx.post_backward_final_callback_queued = False


def _begin_group_anew(group: Any, stream: Any) -> None:
    """Forget what an aborted iteration has left in a group of parameters, which are sharded again."""
    gathered = group._all_gather_result
    if gathered is not None and gathered.all_gather_event is not None:
        stream.wait_event(gathered.all_gather_event)
    if group._post_reduce_event is not None:
        stream.wait_event(group._post_reduce_event)
    _await_events(stream, group._all_reduce_state)
    group._all_gather_result = group._post_reduce_event = group._all_reduce_state = None
    group._reshard_after_forward_event = group._partial_reduce_output = None
    group._post_forward_indices.clear()
    group._training_state = type(group._training_state).IDLE
    group._to_sharded()


def _await_events(stream: Any, *kept: Any) -> None:
    for each in kept:
        if each is not None and each.event is not None:
            stream.wait_event(each.event)


def _param_groups(state: Any) -> list[Any]:
    """Return the groups of parameters of a module that is sharded: one at most up to torch 2.11."""
    groups = getattr(state, "_fsdp_param_groups", None)
    return [group for group in ([state._fsdp_param_group] if groups is None else groups) if group is not None]


def _discard_gradients(root: Any) -> None:
    """Discard gradients of an aborted backward on unsharded parameters, which no zero_grad reaches."""
    for state in root._get_fsdp_state()._state_ctx.all_states:
        for group in _param_groups(state):
            for parameter in group.fsdp_params:
                parameter.unsharded_accumulated_grad = None
                if hasattr(parameter, "_unsharded_param"):
                    parameter._unsharded_param.grad = None


def _fsdp_modules() -> list[Any]:
    """Return every fully sharded module, roots and others."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    module_type = getattr(fsdp, "FSDPModule", None)
    # fully_shard makes a subclass for each class of modules that it wraps: none means that it was never called
    if module_type is None or not module_type.__subclasses__():
        return []
    # type(), because isinstance would ask proxies, which may compute something to answer
    return [found for found in gc.get_objects() if issubclass(type(found), module_type)]
