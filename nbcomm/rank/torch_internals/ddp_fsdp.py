"""DDP and FSDP modules, which hold on to a collective that was interrupted inside their forward or backward."""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import weakref
from typing import Any

from .c10d import Undo, dist, put

_ddp_modules: weakref.WeakSet[Any] = weakref.WeakSet()


def follow_modules() -> Undo:
    """From now on, know every DDP module that is made."""
    from torch.nn.parallel import DistributedDataParallel

    plain = DistributedDataParallel.__init__

    @functools.wraps(plain)
    def init(self: Any, /, *args: Any, **kwargs: Any) -> None:  # it may be called with module=
        plain(self, *args, **kwargs)
        _ddp_modules.add(self)

    return put(DistributedDataParallel, "__init__", init)


def reset_interrupted_modules() -> None:
    """Let DDP and FSDP modules begin anew after an abort inside their forward or backward.

    Without it FSDP's ranks issue different collectives. DDP may still wait for gradients of the backward that was cut
    short; worse, where the abort hit while the ranks agreed on new buckets, some have them and some have not, and the
    gradients of one parameter would be added to those of another. Every rank of a module's group must do so.
    """
    for module in list(_ddp_modules):
        _new_reducer(module)
    fsdp = sys.modules.get("torch.distributed.fsdp")
    module_type = getattr(fsdp, "FSDPModule", None)
    # fully_shard makes a subclass for each class of modules that it wraps: none means that it was never called
    if module_type is None or not module_type.__subclasses__() or not hasattr(module_type, "reset_iter_state"):
        return
    for found in gc.get_objects():
        # type(), for isinstance would ask proxies, which may answer by computing something
        if issubclass(type(found), module_type):
            with contextlib.suppress(Exception):  # only roots may be reset; torch refuses the others
                found.reset_iter_state()


def _new_reducer(module: Any) -> None:
    """Give a DDP module the buckets that it began with, as torch does for one that was unpickled."""
    try:
        module.reducer._remove_autograd_hooks()
        module._has_rebuilt_buckets = False
        parameters, sparse = module._build_params_for_reducer()
        names = module._build_debug_param_to_name_mapping(parameters)
        module._ddp_init_helper(parameters, sparse, names, module.static_graph)
        for hook, state in getattr(module, "_comm_hooks", ()):
            dist._register_comm_hook(module.reducer, state, hook)
        if module.static_graph:
            module.reducer._set_static_graph()
            module.logger._set_static_graph()
    except AttributeError:  # another version of torch: what is left is to forget the last backward
        module.reducer._reset_state()
