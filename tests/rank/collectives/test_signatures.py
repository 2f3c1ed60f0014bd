"""The print of every call: equal where torch would go on, different where it would not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from nbcomm.rank.collectives import signatures
from nbcomm.torch_internals.c10d import PASSED_ON

ONES = torch.ones(2, 3)


def options(op: Any = dist.ReduceOp.SUM, root: int = 0) -> Any:
    """What torch's options hold, whatever their class."""
    return SimpleNamespace(reduceOp=dist.ReduceOp(op), rootRank=root)


ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "_allgather_base": (torch.ones(4, 3), ONES),
    "_reduce_scatter_base": (ONES, torch.ones(4, 3), options()),
    "all_gather_single": (torch.ones(4, 3), ONES),
    "all_gather_single_coalesced": ([torch.ones(4, 3)], [ONES]),
    "all_to_all_single": (ONES, ONES, [], []),
    "allgather": ([[ONES, ONES]], [ONES]),
    "allgather_coalesced": ([[ONES, ONES]], [ONES]),
    "allgather_into_tensor_coalesced": ([torch.ones(4, 3)], [ONES]),
    "allreduce": ([ONES], options()),
    "allreduce_coalesced": ([ONES], options()),
    "alltoall": ([ONES, ONES], [ONES, ONES]),
    "alltoall_base": (ONES, ONES, [], []),
    "barrier": (),
    "broadcast": ([ONES], options()),
    "gather": ([], [ONES], options()),
    "monitored_barrier": (),
    "reduce": ([ONES], options()),
    "reduce_scatter": ([ONES], [[ONES, ONES]], options()),
    "reduce_scatter_single": (ONES, torch.ones(4, 3), options()),
    "reduce_scatter_single_coalesced": ([ONES], [torch.ones(4, 3)], options()),
    "reduce_scatter_tensor_coalesced": ([ONES], [torch.ones(4, 3)], options()),
    "scatter": ([ONES], [], options()),
}


def print_of(name: str, *args: Any) -> tuple[int, str]:
    said = signatures.describe(name, args, {})
    return said.number, said.words


def test_every_method_that_is_passed_on_is_tried_here() -> None:
    assert set(ARGUMENTS) | {"send", "recv", "recv_anysource"} == set(PASSED_ON)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_call_agrees_with_itself_and_not_with_another_dtype(name: str) -> None:
    first = print_of(name, *ARGUMENTS[name])
    assert first == print_of(name, *ARGUMENTS[name])
    assert first[1].startswith(signatures.NAMES.get(name, name) + "(")
    if ARGUMENTS[name]:
        assert "float32" in first[1]
        other = [_double(part) for part in ARGUMENTS[name]]
        assert print_of(name, *other)[0] != first[0]


def _double(part: Any) -> Any:
    if isinstance(part, torch.Tensor):
        return part.double()
    return [_double(one) for one in part] if isinstance(part, list) else part


@pytest.mark.parametrize("name", [name for name, args in ARGUMENTS.items() if args and "to" not in name])
def test_another_shape_differs(name: str) -> None:
    def longer(part: Any) -> Any:
        if isinstance(part, torch.Tensor):
            return torch.ones(part.shape[0] * 2, *part.shape[1:])
        return [longer(one) for one in part] if isinstance(part, list) else part

    assert print_of(name, *map(longer, ARGUMENTS[name]))[0] != print_of(name, *ARGUMENTS[name])[0]


@pytest.mark.parametrize("name", ["broadcast", "gather", "reduce", "scatter"])
def test_another_root_differs(name: str) -> None:
    assert print_of(name, *ARGUMENTS[name][:-1], options(root=1))[0] != print_of(name, *ARGUMENTS[name])[0]


def test_ops_are_told_apart_and_named() -> None:
    ops = [
        op
        for name, op in vars(dist.ReduceOp.RedOpType).items()
        if name.isupper() and name not in ("UNUSED", "PREMUL_SUM")
    ]
    told = {print_of("allreduce", [ONES], options(op)) for op in ops}
    assert len(told) == len(ops)
    assert any("sum" in words for _, words in told)


def test_who_gathers_and_who_gives_agree() -> None:
    assert print_of("gather", [[ONES, ONES]], [ONES], options()) == print_of("gather", [], [ONES], options())
    assert print_of("scatter", [ONES], [[ONES, ONES]], options()) == print_of("scatter", [ONES], [], options())


def test_two_ways_to_call_the_same_thing_agree() -> None:
    assert print_of("_allgather_base", torch.ones(4, 3), ONES) == print_of(
        "all_gather_into_tensor_coalesced".replace("all_gather_into", "allgather_into"), [torch.ones(4, 3)], [ONES]
    )


def test_uneven_parts_of_an_all_to_all_agree() -> None:
    first = print_of("alltoall_base", torch.ones(3, 2), torch.ones(5, 2), [1, 2], [2, 3])
    assert first == print_of("alltoall_base", torch.ones(9, 2), torch.ones(1, 2), [4, 5], [1, 0])
    assert first[0] != print_of("alltoall_base", torch.ones(3, 7), torch.ones(5, 7), [1, 2], [2, 3])[0]


def test_splits_are_counted_in_elements() -> None:
    args = (torch.ones(3, 2), torch.ones(5, 2), [1, 2], [2, 3])
    assert signatures.splits_of("alltoall_base", args, 2) == ([2, 4], [4, 6])
    assert signatures.splits_of("alltoall_base", (torch.ones(4, 2), torch.ones(4, 2), [], []), 2) == ([4, 4], [4, 4])
    parts = [torch.ones(1), torch.ones(3)]
    assert signatures.splits_of("alltoall", (parts, parts[::-1]), 2) == ([1, 3], [3, 1])
    assert set(signatures.UNEVEN) <= set(ARGUMENTS)
    assert signatures.splits_of("alltoall_base", (torch.ones(3), torch.ones(4), [1, 1], [2, 2]), 2) == ([], [])


def test_an_all_to_all_that_gloo_refuses_on_this_rank_is_known() -> None:
    def taken(me: int, *args: Any, name: str = "alltoall_base") -> bool:
        return signatures.gloo_takes(name, args, signatures.splits_of(name, args, 2), me)

    uneven = torch.ones(4), torch.ones(4), [1, 3], [1, 3]
    assert taken(0, *uneven)
    assert taken(1, *uneven)
    assert not taken(0, torch.ones(4), torch.ones(4), [1, 3], [2, 2])
    assert not taken(0, torch.ones(2), torch.ones(4), [], [])
    assert not taken(0, torch.ones(4), torch.ones(4), [1, 2], [2, 2])
    same = [torch.ones(2), torch.ones(2)]
    assert taken(0, same, same, name="alltoall")
    assert not taken(0, [torch.ones(1), torch.ones(2)], [torch.ones(1), torch.ones(2)], name="alltoall")


def test_a_message_agrees_where_the_bytes_do() -> None:
    sent = signatures.message("send", [torch.ones(6)])
    assert sent.number == signatures.message("recv", [torch.ones(2, 3)]).number
    assert sent.number != signatures.message("recv", [torch.ones(5)]).number
    assert sent.number != signatures.message("recv", [torch.ones(6, dtype=torch.int32)]).number
    assert sent.words == "send of float32 (6,)"


def test_odd_arguments_are_torchs_matter() -> None:
    assert print_of("allreduce", None, None)[1] == "all_reduce()"
    assert print_of("allreduce")[1] == "all_reduce()"


def test_the_cache_does_not_grow_for_ever() -> None:
    for length in range(signatures._CACHED + 10):
        signatures.describe("allreduce", ([torch.empty(length, device="meta")], options()), {})
    assert len(signatures._cache) <= signatures._CACHED
