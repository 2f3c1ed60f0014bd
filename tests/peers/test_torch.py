"""nbcomm beside torch.distributed, on the same random inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nbcomm.notebook.session.session import Session
from nbcomm.torch_versions import limits

from . import inputs

SEEDS = st.integers(0, 2**31)
OPS = ("sum", "min", "max", "product")
ADDS_ONLY = "reduce_scatter" in limits(torch.__version__)
OTHERS = ("bool",) if ADDS_ONLY else ("bool", "complex64")  # gloo of torch 2.8 has no complex numbers
few = settings(max_examples=15)


@few
@given(
    shape=inputs.shapes, dtype=st.sampled_from(("float32", "float64", "int64", "int32", "uint8", "int8")), seed=SEEDS
)
@pytest.mark.parametrize("op", OPS)
def test_reductions(four: Session, op: str, shape: tuple[int, ...], dtype: str, seed: int) -> None:
    adds_only = ADDS_ONLY

    def check() -> Any:
        import torch.distributed as dist

        import nbcomm

        comm = nbcomm.init()
        x = inputs.made(("tensor", shape, dtype), seed, comm.rank)
        torch_op = getattr(dist.ReduceOp, op.upper())
        reduced, on_dst = x.clone(), x.clone()
        dist.all_reduce(reduced, torch_op)
        dist.reduce(on_dst, 2, torch_op)
        long = torch.cat([x.reshape(1, -1) + place for place in range(4)]).to(x.dtype)
        share = torch.empty_like(long[:1])
        if adds_only:  # torch's, for each op
            dist.all_reduce(whole := long.clone(), torch_op)
            share = whole[comm.rank : comm.rank + 1]
        else:
            dist.reduce_scatter_tensor(share, long.clone(), torch_op)
        mine = comm.reduce(x, op, 2)
        return (
            inputs.same(comm.all_reduce(x, op), reduced),
            mine is None if comm.rank != 2 else inputs.same(mine, on_dst),
            inputs.same(comm.reduce_scatter(long, op), share),
            inputs.same(x, inputs.made(("tensor", shape, dtype), seed, comm.rank)),
        )

    assert four.call(check) == [(True,) * 4] * 4


@few
@given(shape=inputs.shapes, dtype=st.sampled_from(inputs.FLOATS + inputs.INTEGERS + OTHERS), seed=SEEDS)
def test_movements(four: Session, shape: tuple[int, ...], dtype: str, seed: int) -> None:
    def check() -> Any:
        import torch.distributed as dist

        import nbcomm

        comm = nbcomm.init()
        x = inputs.made(("tensor", shape, dtype), seed, comm.rank)
        everybody = [torch.empty_like(x) for _ in range(4)]
        dist.all_gather(everybody, x.clone())
        from_one = x.clone()
        dist.broadcast(from_one, 3)
        rows = comm.all_gather(x)
        joined = comm.all_gather(x, "cat")
        on_dst = comm.gather(x, 1)
        item = torch.empty_like(x)
        dist.scatter(item, everybody if comm.rank == 1 else None, 1)
        turned = comm.all_to_all([row.clone() for row in everybody])
        return (
            inputs.same(comm.all_gather(x, "list"), everybody),
            inputs.same(rows, torch.stack(everybody)),
            inputs.same(joined, torch.cat([part.reshape(-1) if x.ndim == 0 else part for part in everybody])),
            inputs.same(comm.broadcast(x, 3), from_one),
            on_dst is None if comm.rank != 1 else inputs.same(on_dst, everybody),
            inputs.same(comm.scatter(everybody if comm.rank == 1 else None, 1), item),
            inputs.same(turned, [everybody[comm.rank]] * 4),
        )

    assert four.call(check) == [(True,) * 7] * 4


@few
@given(described=inputs.trees(st.one_of(inputs.leaves, inputs.numbers, inputs.texts)), seed=SEEDS)
def test_objects(four: Session, described: Any, seed: int) -> None:
    def check() -> Any:
        import torch.distributed as dist

        import nbcomm

        comm = nbcomm.init()
        value = inputs.made(described, seed, comm.rank)
        everybody: list[Any] = [None] * 4
        dist.all_gather_object(everybody, value)
        box = [value]
        dist.broadcast_object_list(box, 2)
        item: list[Any] = [None]
        dist.scatter_object_list(item, everybody if comm.rank == 0 else None, 0)
        collected: Any = [None] * 4 if comm.rank == 3 else None
        dist.gather_object(value, collected, 3)
        on_dst = comm.gather(value, 3, "object")
        return (
            inputs.same(comm.all_gather(value, "object"), everybody),
            inputs.same(comm.broadcast(value, 2), box[0]),
            inputs.same(comm.scatter(everybody if comm.rank == 0 else None), item[0]),
            on_dst is None if comm.rank != 3 else inputs.same(on_dst, collected),
        )

    assert four.call(check) == [(True,) * 4] * 4


def test_messages(four: Session) -> None:
    def check() -> Any:
        import torch.distributed as dist

        import nbcomm

        comm = nbcomm.init()
        right, left = (comm.rank + 1) % 4, (comm.rank - 1) % 4
        x, theirs = torch.full((3,), float(comm.rank)), torch.empty(3)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, theirs, left)]):
            work.wait()
        return inputs.same(comm.sendrecv(x, right, left), theirs)

    assert four.call(check) == [True] * 4


def test_subgroups(four: Session) -> None:
    def check() -> Any:
        import torch.distributed as dist

        import nbcomm

        comm = nbcomm.init()
        group = dist.new_group([1, 3])
        if comm.rank not in (1, 3):
            return True
        x = torch.tensor([float(comm.rank)])
        theirs = x.clone()
        dist.all_reduce(theirs, group=group)
        return inputs.same(comm.all_reduce(x, group=group), theirs) and comm.group_rank(group) == dist.get_group_rank(
            group, comm.rank
        )

    assert four.call(check) == [True] * 4
