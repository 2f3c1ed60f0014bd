"""What torch keeps at module level is known, and what a cell leaves of it in the middle is put right."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel

from nbcomm.torch_internals import unfinished

_ROOT = Path(dist.__file__).parent
_PROGRAMS = ("_tools", "benchmarks", "elastic", "examples", "launcher", "rpc")
"""Programs of their own, and RPC, whose agents are no groups of c10d."""

_STATE = {
    "what torch keeps of its groups: compared and put right, see `unfinished`": {
        "distributed_c10d:_world",
        "distributed_c10d:_group_count",  # the same on all ranks after each forming
    },
    "of the latest world, read by nobody afterwards": {
        "distributed_c10d:_backend",
        "distributed_c10d:_default_pg_init_method",
    },
    "set for a block that closes itself": {
        "_local_tensor:_LOCAL_RUNNER_MODE",
        "_local_tensor:_PROCESS_MODE",
        "_local_tensor:_THREAD_LOCAL_TENSOR_MODE",
        "_shard.api:_CURRENT_PROCESS_GROUP",
        "_symmetric_memory:_is_test_mode",
        "_symmetric_memory:_mocked_group_names",
        "device_mesh:_mesh_resources",
        "fsdp._fully_shard._fully_shard:_enable_fsdp_module_new_init",
        "tensor._redistribute:_DISABLE_REDISTRIBUTE_TRANSFORM_OPTIMIZATION",
        "tensor._redistribute:_FORCE_MIN_COST_REDISTRIBUTION_PLAN",
    },
    "set for a block that torch up to 2.12 does not close: see `unfinished`": {
        "tensor.experimental._attention:_cp_global_vars",
        "tensor.experimental._attention:_replaced_functions",
        "tensor.experimental._context_parallel._attention:_dispatch_mode",
        "tensor.experimental._context_parallel._attention:_replaced_functions",
        "tensor.experimental._context_parallel._sharding_rules:_cp_strategy_contexts",
        "tensor.experimental._context_parallel._sharding_rules:_original_strategies",
    },
    "by a name of a group or by the group, which stays the same object when it is formed again": {
        "_symmetric_memory:_group_name_to_store",
        "_symmetric_memory:_group_name_to_workspace_tensor",
        "pipelining._p2p:_PP_EDGE_GROUP_CACHE",
        "pipelining.stage:_PP_DIRECTION_GROUP_CACHE",
    },
    "by a mesh: forgotten with its groups, see `dtensor.forget_meshes`": {
        "tensor._random:_rng_tracker",
        "tensor._redistribute:_planner_cache",
    },
    "a user's choice, which a cell makes for the next ones": {
        "__init__:_breakpoint_cache",
        "_dist2:_BACKENDS",
        "_shard.sharding_spec.api:_CUSTOM_SHARDING_SPEC_OPS",
        "_transport._registry:_registered_transports",
        "algorithms._optimizer_overlap.optimizer_overlap:_registered_overlapped_optims",
        "checkpoint._experimental.barriers:BARRIER_REGISTRY",
        "checkpoint.state_dict:_patched_state_dict",
        "config:compile_on_one_rank",
        "config:pipeline_per_direction_p2p",
        "config:pipeline_per_edge_p2p",
        "config:use_torchcomms",
        "distributed_c10d:_FR_SELF_RECORDING_BACKENDS",
        "fsdp._fsdp_extensions:_extensions",
        "optim.utils:functional_optim_map",
        "rendezvous:_rendezvous_handlers",
        "tensor.experimental._attention:_cp_options",
        "tensor.experimental._context_parallel._attention:_cp_options",
    },
    "of a user's modules, tensors and parameters": {
        "_composable_state:_module_state_mapping",
        "_shard.sharded_tensor.api:_sharded_tensor_current_id",
        "_shard.sharded_tensor.api:_sharded_tensor_map",
        "fsdp._common_utils:_MODULE_TO_INP_DTYPE",
        "optim.apply_optimizer_in_backward:param_to_acc_grad_map",
        "optim.apply_optimizer_in_backward:param_to_optim_hook_handle_map",
    },
    "made once in a process, and the same for each group": {
        "__init__:_spmd_types_available",
        "_composable.replicate_with_fsdp:cls_to_replicate_cls",
        "_meta_registrations:used_ids",
        "_symmetric_memory:_backend_streams",
        "_symmetric_memory:_symm_mem_pools",
        "_symmetric_memory:_use_implicit_mempool",
        "_symmetric_memory._nvshmem_triton:triton_kernels",
        "_token_switch:_NCCL_EP_KEEPALIVE",
        "_transport._cuda_stream:_closed_captures",
        "_transport._cuda_stream:_libcuda",
        "_transport._cuda_stream:_loop",
        "_watchdog:_watchdog",
        "checkpoint._async_process_executor:_CHECKPOINT_PROCESS",
        "checkpoint._dedup_tensors:logger",
        "debug:_DEBUG_SERVER_PROC",
        "debug:_WORKER_SERVER",
        "device_mesh:_distributed_opaque_types_registered",
        "fsdp._fully_shard._fsdp_common:_compiled_autograd_enabled",
        "fsdp._fully_shard._fully_shard:cls_to_fsdp_cls",
        "nn.jit.instantiator:_TEMP_DIR",
        "pipelining.microbatch:sum_reducer",
        "pipelining.schedules:_TARGET_CHUNK_SPEC",
        "tensor._ops._pointwise_ops:_specially_registered_ops",
        "tensor._redistribute:_warned_flatten_issues",
        "tensor.debug._op_coverage:graphs",
        "tensor.experimental._context_parallel._attention:_compiled_create_block_mask",
    },
}
"""All state of torch.distributed at module level, by what becomes of it between two cells; read in 2.8 to 2.15."""

_BLOCKS = {
    "closed between two cells, see `unfinished`": {
        "distributed_c10d:_coalescing_manager",
        "tensor.parallel.loss:loss_parallel",
        # torch up to 2.12
        "tensor.experimental._attention:_context_parallel",
        "tensor.experimental._attention:_enable_cp_dispatcher",
        "tensor.experimental._attention:context_parallel",
        "tensor.experimental._context_parallel._attention:context_parallel",
    },
    "in a backend of NCCL's, which an error in it replaces with its group": {"distributed_c10d:_time_estimator"},
    "on an object of the user's, and nowhere else": {
        "fsdp._state_dict_utils:_replace_with_full_state_dict_type",
        "fsdp._unshard_param_utils:_unflatten_as_params",
        "fsdp._unshard_param_utils:_unshard_fsdp_state_params",
        "fsdp._unshard_param_utils:_unshard_params",
        "fsdp.fully_sharded_data_parallel:state_dict_type",
    },
    "nothing to close: only what follows a success": {
        "_local_tensor:_distribute_region",
        "checkpoint._pg_transport:_timeit",
        "tensor._random:_distribute_region",
    },
}
"""Torch's context managers that do something behind their block, and not if it raises; read in 2.8 to 2.15."""

_CHANGES = {"add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "register", "remove"}
_CHANGES |= {"setdefault", "update"}
_NO_STATE = {"ArgumentParser", "CFUNCTYPE", "FlightRecorderLogger", "Library", "Literal", "Lock", "Logger", "NewType"}
_NO_STATE |= {"ParamSpec", "Path", "TypeVar", "TypeVarTuple"}


@functools.cache
def _modules() -> list[tuple[str, ast.Module]]:
    files = {file.relative_to(_ROOT).with_suffix("").parts: file for file in sorted(_ROOT.rglob("*.py"))}
    return [
        (".".join(parts).removesuffix(".__init__"), ast.parse(file.read_text()))
        for parts, file in files.items()
        if parts[0] not in _PROGRAMS
    ]


def _top_level(body: list[ast.stmt]) -> dict[str, ast.expr | None]:
    found: dict[str, ast.expr | None] = {}
    for line in body:
        if isinstance(line, ast.Assign):
            found |= {target.id: line.value for target in line.targets if isinstance(target, ast.Name)}
        elif isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            found[line.target.id] = line.value
        elif isinstance(line, ast.If | ast.Try | ast.With):
            found |= _top_level(line.body) | _top_level(getattr(line, "orelse", []))
    return found


def _changed_in(function: ast.AST, top: dict[str, ast.expr | None]) -> Iterator[str]:
    """Names at module level that a function binds again, or whose content it changes."""
    own = {name for line in ast.walk(function) if isinstance(line, ast.Global) for name in line.names}
    for node in ast.walk(function):
        value = getattr(node, "value", None)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del) and node.id in own:
            yield node.id
        elif isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            if isinstance(value, ast.Name) and value.id in top:
                yield value.id
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGES:
            yield from [ast.unparse(node.func.value)] if ast.unparse(node.func.value) in top else []


def _has_state(value: ast.expr | None) -> bool:
    """Whether a name at module level is bound to an instance of a class that may have any."""
    if not isinstance(value, ast.Call):
        return False
    made = ast.unparse(value.func).rpartition(".")[2]
    return made.lstrip("_")[:1].isupper() and made not in _NO_STATE


def _state() -> set[str]:
    found = set()
    for module, tree in _modules():
        top = _top_level(tree.body)
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Lambda)]
        names = {name for function in functions for name in _changed_in(function, top)}
        names |= {name for name, value in top.items() if _has_state(value)}
        found |= {f"{module}:{name}" for name in names}
    return found


def _bare_yields(body: list[ast.stmt]) -> Iterator[int]:
    """Lines of yields that no ``try`` is around."""
    for line in body:
        if isinstance(line, ast.Try):
            continue
        inner = [part for name in ("body", "orelse") for part in getattr(line, name, [])]
        if inner:
            yield from _bare_yields(inner)
        else:
            yield from (node.lineno for node in ast.walk(line) if isinstance(node, ast.Yield))


def _open_blocks() -> set[str]:
    found = set()
    for module, tree in _modules():
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef) and any(
                "contextmanager" in ast.unparse(each) for each in function.decorator_list
            ):
                last = max(node.lineno for node in ast.walk(function) if isinstance(node, ast.stmt))
                if any(line < last for line in _bare_yields(function.body)):
                    found.add(f"{module}:{function.name}")
    return found


@pytest.mark.parametrize(("derived", "known"), [(_state, _STATE), (_open_blocks, _BLOCKS)])
def test_of_all_that_this_torch_keeps_at_module_level_is_known_what_becomes_of_it(derived: Any, known: Any) -> None:
    found = derived()
    assert "distributed_c10d:_world" in found or "distributed_c10d:_coalescing_manager" in found
    new = found - set().union(*known.values())
    assert not new, f"torch {torch.__version__} has one more: what becomes of it where a cell ends in its middle?"


# ── each that is put right ──────────────────────────────────────────────────────────────────────────


@pytest.fixture
def alone() -> Iterator[None]:
    """A world of torch's own, with one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def _tables() -> list[int]:
    world = c10d._world
    return [len(table) for table in (world.pg_map, world.pg_names, world.pg_group_ranks, world.pg_backend_config)]


@pytest.mark.usefixtures("alone")
def test_nothing_is_unfinished_where_all_has_ended() -> None:
    group = dist.new_group([0])
    with dist._coalescing_manager():
        dist.all_reduce(torch.ones(1))
    assert unfinished.finish() == []
    dist.destroy_process_group(group)
    assert unfinished.finish() == []
    nobody: Any = dist.GroupMember.NON_GROUP_MEMBER
    c10d._world.pg_group_ranks[nobody] = {1: 0}  # as torch does on a rank that is no member of a new group
    assert unfinished.finish() == []


class _OfOurs:
    """A group in which `_start_coalescing` was called."""

    left = False

    def leave_coalescing(self) -> None:
        self.left = True
        raise RuntimeError("NCCL has failed meanwhile")


@pytest.mark.usefixtures("alone")
def test_calls_of_a_block_that_was_left_are_forgotten_in_each_group() -> None:
    group, ours = dist.new_group([0]), _OfOurs()
    for each in (dist.group.WORLD, group):
        dist._coalescing_manager(each).__enter__()
        dist.all_reduce(torch.ones(1), group=each)
    c10d._world.pg_coalesce_state[ours] = []  # type: ignore[index]
    assert unfinished.finish() == ["a block of dist._coalescing_manager(), whose calls were not carried out"]
    assert not c10d._world.pg_coalesce_state
    assert ours.left
    assert dist.all_reduce(torch.ones(1), async_op=True) is not None
    assert unfinished.finish() == []


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("table", ["pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "pg_to_tag"])
def test_a_group_that_lacks_in_one_table_is_in_none_and_its_name_is_free(table: str) -> None:
    before = _tables()
    group = dist.new_group([0])
    name = group.group_name
    del getattr(c10d._world, table)[group]
    assert unfinished.finish() == ["the making or the end of a group"]
    assert _tables() == before
    assert all(group not in tagged for tagged in c10d._world.tags_to_pg.values())
    with pytest.raises(RuntimeError):
        torch._C._distributed_c10d._resolve_process_group(name)
    dist.all_reduce(torch.ones(1))
    assert unfinished.finish() == []


@pytest.mark.usefixtures("alone")
def test_the_end_of_the_world_that_was_interrupted_is_an_end() -> None:
    group = dist.new_group([0])
    kept = dist.group.WORLD  # as its threads do
    c10d._update_default_pg(None)
    assert unfinished.finish() == ["the making or the end of a group"]
    assert _tables() == [0, 0, 0, 0]
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    del group, kept


@pytest.mark.usefixtures("alone")
def test_a_world_that_lacks_in_a_table_is_no_world() -> None:
    c10d._world.pg_names.clear()
    assert unfinished.finish() == ["the making or the end of a group"]
    assert not dist.is_initialized()


def _leave_loss_parallel() -> None:
    with pytest.raises(ZeroDivisionError), loss_parallel():
        _ = 1 / 0


def _leave_context_parallel() -> None:
    module: Any = pytest.importorskip(
        "torch.distributed.tensor.experimental._context_parallel._attention",
        reason="torch 2.8 and 2.9 have another one",
    )
    module._dispatch_mode = module._DispatchMode.MONKEY_PATCH  # what it is anyway
    module._enable_context_parallel_dispatcher_impl(2, init_device_mesh("cpu", (1,)))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("leave", [_leave_loss_parallel, _leave_context_parallel])
def test_a_block_that_replaces_what_operators_do_is_closed(leave: Any) -> None:
    dispatcher: Any = DTensor._op_dispatcher  # type: ignore[attr-defined]
    before, attention = dict(dispatcher._custom_op_handlers), F.scaled_dot_product_attention
    leave()
    assert dict(dispatcher._custom_op_handlers) != before
    assert len(unfinished.finish()) == 1
    assert dispatcher._custom_op_handlers == before
    assert F.scaled_dot_product_attention is attention
    assert unfinished.finish() == []
