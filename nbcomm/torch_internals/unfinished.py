"""What a cell that ends in the middle of torch's Python code leaves in torch's modules, and how it is put right.

A program ends with its first error, so torch does not mind: some of its context managers close nothing if their block
raises, and the making or the end of a group that is interrupted has done a half of its lines. In a notebook the next
cell runs in the same process: its calls would join the list of an open block, and never be carried out.

``tests/torch_internals/test_unfinished.py`` derives both lists from torch's source: its managers without a ``finally``,
and its state at module level.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

from .c10d import _C, c10d, dist

_LOSS = "torch.distributed.tensor.parallel.loss"
_CONTEXT = tuple(
    f"torch.distributed.tensor.experimental.{name}" for name in ("_context_parallel._attention", "_attention")
)
_ROOMS = {_LOSS, *_CONTEXT}
"""Modules whose blocks may be left open."""

_NOBODY: Any = dist.GroupMember.NON_GROUP_MEMBER
"""What torch keeps in one of its tables on a rank that is no member of a group."""


def finish() -> list[str]:
    """Close torch's open blocks, and forget groups that are not whole, on the main thread between two cells.

    Returns:
        What was unfinished, in words; the groups must be formed again then. Mostly nothing.
    """
    world, ranks = c10d._world, c10d._world.pg_group_ranks
    count = len(ranks) - (_NOBODY in ranks)
    alike = count == len(world.pg_map) == len(world.pg_names) == len(world.pg_backend_config) == len(world.pg_to_tag)
    whole = alike and world.default_pg is not None and not world.pg_coalesce_state  # mostly; this is behind each cell
    left = [] if whole else [*_close_coalescing(), *_forget_halves()]
    if _ROOMS & sys.modules.keys():
        left += [*_close_loss_parallel(), *_close_context_parallel()]
    return left


def _close_coalescing() -> list[str]:
    """Forget the calls that wait for the end of a `_coalescing_manager`; an NCCL group of calls is ended, too."""
    left = c10d._world.pg_coalesce_state
    if not left:
        return []
    for group in [*left]:
        del left[group]
        with suppress(Exception):  # its calls are not the same on all ranks: they are aborted with the group
            getattr(group, "leave_coalescing", int)()
    return ["a block of dist._coalescing_manager(), whose calls were not carried out"]


def _forget_halves() -> list[str]:
    """Forget groups that are not in all of torch's tables; without a world, all of them."""
    world = c10d._world
    tables = world.pg_map, world.pg_names, world.pg_group_ranks, world.pg_backend_config, world.pg_to_tag
    there = world.default_pg is not None
    known = {group for table in tables for group in table} - {_NOBODY}
    whole = {group for group in known if there and all(group in table for table in tables)}
    for group in known - whole:
        for name in {world.pg_names.get(group), getattr(group, "group_name", None)} - {None}:
            with suppress(RuntimeError):  # it was not registered yet
                _C._unregister_process_group(name)
        for table in tables:
            table.pop(group, None)
        for tagged in world.tags_to_pg.values():
            if group in tagged:
                tagged.remove(group)
    if there and world.default_pg not in whole:
        c10d._update_default_pg(None)
    return ["the making or the end of a group"] * bool(known - whole)


def _close_loss_parallel() -> list[str]:
    loss = sys.modules.get(_LOSS)
    if loss is None or not loss.customized_loss_ops.keys() <= _handlers().keys():
        return []
    loss._disable_custom_loss_ops()
    return ["a block of loss_parallel()"]


def _close_context_parallel() -> list[str]:
    """Give `scaled_dot_product_attention` back, which torch up to 2.12 leaves replaced."""
    for name in _CONTEXT:
        module: Any = sys.modules.get(name)
        functional: Any = sys.modules["torch.nn.functional"]
        attention = functional.scaled_dot_product_attention
        if attention in getattr(module, "_replaced_functions", ()):
            module._restore_function(attention, functional)
            getattr(module, "_disable_cp_dtensor_dispatcher", int)()  # 2.8 and 2.9 keep theirs in the block itself
            return ["a block of context_parallel()"]
    return []


def _handlers() -> dict[Any, Any]:
    return dist.tensor.DTensor._op_dispatcher._custom_op_handlers  # type: ignore[no-any-return]
