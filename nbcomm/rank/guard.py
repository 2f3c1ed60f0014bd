"""Refuses what can only hang: collectives that need a rank which the running cell does not run on.

The Communicator asks `check_present` itself. `refuse_world_collectives` covers everything else that calls
``torch.distributed`` from Python: raw ``dist.*`` calls, functional collectives, DDP. It patches torch for as long as a
subset cell runs, and costs nothing in any other cell.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel

from .. import ranks as rank_sets
from ..errors import SubsetError
from .trees import named

# The methods of ProcessGroup through which data moves; which of them exist depends on torch's version.
_COLLECTIVES = (
    "_allgather_base",
    "_reduce_scatter_base",
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "barrier",
    "broadcast",
    "gather",
    "monitored_barrier",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "scatter",
)


def check_present(what: str, members: Sequence[int], cell_ranks: Sequence[int], world_size: int) -> None:
    """Refuse a collective over ``members`` if one of them does not run this cell.

    Args:
        what: the name of the call, for the message.
        members: the group's global ranks.
        cell_ranks: the global ranks that run this cell.
        world_size: to call the world by its name.

    Raises:
        SubsetError: a member is absent.
    """
    absent = sorted(set(members) - set(cell_ranks))
    if not absent:
        return
    over = "the world" if len(members) == world_size else f"a group of {named(members)}"
    running = list(cell_ranks)
    raise SubsetError(
        f"{what} over {over} needs {named(absent)} too, but this cell runs on {named(running)} only, so it would never "
        f"end. Run the cell on {named(members)}, or pass group=g, with g = new_group({running}) made earlier in a cell "
        "on all ranks."
    )


def check_peer(what: str, peer: int, cell_ranks: Sequence[int]) -> None:
    """Refuse a message to or from a rank that does not run this cell.

    Raises:
        SubsetError: the peer is absent.
    """
    if peer not in cell_ranks:
        raise SubsetError(
            f"{what} rank {peer} needs rank {peer} to take part, but this cell runs on {named(list(cell_ranks))} only. "
            f"Run the cell on rank {peer} too: -r {rank_sets.fold([*cell_ranks, peer])}."
        )


@contextlib.contextmanager
def refuse_world_collectives(cell_ranks: Sequence[int] | None) -> Iterator[None]:
    """While the block runs, calls of ``torch.distributed`` that need an absent rank raise `SubsetError`.

    Covered: the collectives and point-to-point calls of ``torch.distributed`` on any group, ``new_group``,
    functional collectives, and the construction of DDP. Not covered: what C++ starts by itself, as the reducer of a DDP
    module that was made before does in backward.

    Args:
        cell_ranks: the global ranks that run the cell. None, or every rank of the world: nothing is refused, and
            nothing patched.
    """
    if cell_ranks is None or len(set(cell_ranks)) == dist.get_world_size():
        yield
        return
    with contextlib.ExitStack() as stack:
        _patch_all(stack, sorted(cell_ranks))
        yield


def _patch_all(stack: contextlib.ExitStack, cell_ranks: list[int]) -> None:
    world_size = dist.get_world_size()

    def over_group(name: str, group_of: Callable[..., Any]) -> Callable[..., None]:
        def check(*args: Any, **kwargs: Any) -> None:
            check_present(name, dist.get_process_group_ranks(group_of(*args, **kwargs)), cell_ranks, world_size)

        return check

    def with_peer(name: str) -> Callable[..., None]:
        def check(group: Any, _: Any, peer: int, *__: Any, **___: Any) -> None:
            check_peer(name, dist.get_process_group_ranks(group)[peer], cell_ranks)

        return check

    for name in _COLLECTIVES:
        if name in vars(dist.ProcessGroup):
            _patch(stack, dist.ProcessGroup, name, over_group(name.strip("_"), lambda group, *_, **__: group))
    _patch(stack, dist.ProcessGroup, "send", with_peer("send to"))
    _patch(stack, dist.ProcessGroup, "recv", with_peer("recv from"))
    _patch(stack, DistributedDataParallel, "__init__", over_group("DistributedDataParallel", _ddp_group))
    # The functional collectives meet the group by its name, in C++; here is where Python still sees it.
    for name in ("_resolve_group", "_resolve_group_name"):
        if resolve := getattr(functional, name, None):
            _patch(stack, functional, name, over_group("A functional collective", _functional_group(resolve)))
    for module in (dist, dist.distributed_c10d):
        _patch(stack, module, "new_group", over_group("new_group", lambda *_, **__: None))


_ddp_signature = inspect.signature(DistributedDataParallel.__init__)


def _ddp_group(*args: Any, **kwargs: Any) -> Any:
    given = _ddp_signature.bind(*args, **kwargs).arguments
    mesh = given.get("device_mesh")
    return given.get("process_group") if mesh is None else mesh.get_group()


def _functional_group(resolve: Callable[..., Any]) -> Callable[..., Any]:
    def group_of(group: Any, tag: str = "") -> Any:
        found = resolve(group, tag)
        if isinstance(found, str):
            # torch has no public way, and its types say that only its own name class will do
            resolve_name: Callable[[Any], Any] = torch._C._distributed_c10d._resolve_process_group  # noqa: SLF001
            return resolve_name(found)
        return found

    return group_of


def _patch(stack: contextlib.ExitStack, owner: Any, name: str, check: Callable[..., None]) -> None:
    """Have ``check`` called before ``owner.name`` until the stack is closed."""
    plain = getattr(owner, name)
    stored = vars(owner)[name]  # what binds: getattr has unwrapped it, and it would not bind again

    @functools.wraps(plain)
    def checked(*args: Any, **kwargs: Any) -> Any:
        check(*args, **kwargs)
        return plain(*args, **kwargs)

    setattr(owner, name, checked)
    stack.callback(setattr, owner, name, stored)
