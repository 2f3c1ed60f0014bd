"""nbcomm beside pytorch-ignite's ``idist``, on the same random inputs."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from nbcomm.notebook.session.session import Session

from . import inputs

SEEDS = st.integers(0, 2**31)
few = settings(max_examples=20)
tensors = st.tuples(st.just("tensor"), inputs.shapes, st.sampled_from(("float32", "float64", "int64", "int32")))


@few
@given(described=tensors, op=st.sampled_from(("SUM", "MIN", "MAX", "PRODUCT")), seed=SEEDS)
def test_all_reduce(four: Session, described: Any, op: str, seed: int) -> None:
    def check() -> bool:
        import ignite.distributed as idist

        import nbcomm

        comm = nbcomm.init()
        x = inputs.made(described, seed, comm.rank)
        return inputs.same(comm.all_reduce(x, op), idist.all_reduce(x.clone(), op))

    assert four.call(check) == [True] * 4


@few
@given(described=tensors, seed=SEEDS)
def test_all_gather_of_tensors_is_our_cat(four: Session, described: Any, seed: int) -> None:
    def check() -> bool:
        import ignite.distributed as idist

        import nbcomm

        comm = nbcomm.init()
        x = inputs.made(described, seed, comm.rank)
        return inputs.same(comm.all_gather(x, "cat"), idist.all_gather(x))

    assert four.call(check) == [True] * 4


@few
@given(described=st.one_of(tensors, inputs.texts), src=st.integers(0, 3), seed=SEEDS)
def test_broadcast(four: Session, described: Any, src: int, seed: int) -> None:
    def check() -> bool:
        import ignite.distributed as idist

        import nbcomm

        comm = nbcomm.init()
        value = inputs.made(described, seed, comm.rank)
        return inputs.same(comm.broadcast(value, src), idist.broadcast(value, src, safe_mode=True))

    assert four.call(check) == [True] * 4


@few
@given(described=inputs.trees(inputs.texts), seed=SEEDS)
def test_all_gather_of_objects_is_our_object_mode(four: Session, described: Any, seed: int) -> None:
    def check() -> bool:
        import ignite.distributed as idist

        import nbcomm

        comm = nbcomm.init()
        value = inputs.made(described, seed, comm.rank)
        return inputs.same(comm.all_gather(value, "object"), idist.all_gather(value))

    if described[0] == "text" or described[0] == "list":  # the others it does not take
        assert four.call(check) == [True] * 4


def test_who_and_where(four: Session) -> None:
    def check() -> Any:
        import ignite.distributed as idist

        import nbcomm

        comm = nbcomm.init()
        return (
            idist.get_rank() == comm.rank,
            idist.get_world_size() == comm.world_size,
            idist.get_local_rank() == comm.local_rank,
            idist.get_nproc_per_node() == comm.local_world_size,
            idist.get_node_rank() == comm.node_rank,
            idist.device() == comm.device,
        )

    assert four.call(check) == [(True,) * 6] * 4


def test_one_rank_only_and_groups(four: Session) -> None:
    def check() -> Any:
        import ignite.distributed as idist
        import torch

        import nbcomm

        comm = nbcomm.init()
        found = []
        for decorate in (idist.one_rank_only, comm.one_rank_only):

            @decorate(rank=2, with_barrier=True)
            def where(word: str) -> str:
                return f"{word} {comm.rank}"

            found.append(where("rank"))
        group = idist.new_group([0, 2])
        if comm.rank in (0, 2):
            x = torch.ones(1)
            found += [idist.all_reduce(x.clone(), group=group), comm.all_reduce(x, group=group)]
        return found

    results = four.call(check)
    assert results[1] == results[3] == [None, None]
    assert results[2][:2] == ["rank 2", "rank 2"]
    assert inputs.same(*results[0][2:])
