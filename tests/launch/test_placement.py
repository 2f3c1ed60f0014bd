"""How many ranks, on what, and which sits where."""

from __future__ import annotations

import pytest

from nbcomm.errors import StartError
from nbcomm.launch import placement
from nbcomm.launch.placement import NodeShare, assign_places
from nbcomm.protocol import RankPlacement


@pytest.mark.parametrize(
    ("asked", "gpus", "cores", "size"),
    [(None, 8, 4, 8), (None, 0, 4, 4), (None, 0, 2, 4), (None, 0, 1, 2), (3, 8, 1, 3), (1, 0, 1, 1)],
)
def test_the_size(asked: int | None, gpus: int, cores: int, size: int) -> None:
    assert placement.choose_size(asked, gpus, cores=cores) == size


@pytest.mark.parametrize("asked", [0, -1])
def test_a_world_has_a_rank(asked: int) -> None:
    with pytest.raises(StartError) as refused:
        placement.choose_size(asked, 0, cores=4)
    assert str(refused.value) == f"A world needs at least 1 rank, not {asked}; write for example -n 4."


ON_CPU = "the ranks run on the CPU; with --device cuda they share the"
NEWER = "Version 2.30, which is in torch 2.14.1, lets ranks share one."
SHARED = f"over gloo: NCCL 2.29.7 needs a GPU for each rank. {NEWER}"


@pytest.mark.parametrize(
    ("asked", "n", "gpus", "kind", "backend", "notice"),
    [
        ("auto", 4, 0, "cpu", "gloo", ""),
        ("cpu", 4, 8, "cpu", "gloo", ""),
        ("auto", 4, 4, "cuda", "cpu:gloo,cuda:nccl", ""),
        ("auto", 2, 8, "cuda", "cpu:gloo,cuda:nccl", ""),
        ("auto", 4, 1, "cpu", "gloo", f"4 ranks on 1 GPU: {ON_CPU} GPU."),
        ("auto", 4, 2, "cpu", "gloo", f"4 ranks on 2 GPUs: {ON_CPU} GPUs."),
        ("cuda", 4, 1, "cuda", "gloo", f"4 ranks share 1 GPU, {SHARED}"),
        ("cuda", 4, 2, "cuda", "gloo", f"4 ranks share 2 GPUs, {SHARED}"),
        ("cuda", 2, 2, "cuda", "cpu:gloo,cuda:nccl", ""),
    ],
)
def test_the_device(asked: str, n: int, gpus: int, kind: str, backend: str, notice: str) -> None:
    assert placement.choose_device(asked, n, gpus, "2.29.7") == (kind, backend, notice)


@pytest.mark.parametrize(
    ("nccl", "share", "backend", "notice"),
    [
        ("2.30.7", True, "cpu:gloo,cuda:nccl", "over NCCL 2.30.7, in which this is experimental."),
        ("2.30.7", False, "gloo", "over gloo: with --share they use NCCL 2.30.7, in which this is experimental."),
        ("2.29.7", True, "gloo", SHARED),
        ("", True, "gloo", f"over gloo: this torch has no NCCL. {NEWER}"),
    ],
)
def test_ranks_share_a_gpu_over_nccl_where_its_version_can(nccl: str, share: bool, backend: str, notice: str) -> None:
    share = share and placement.can_share(nccl)
    assert placement.choose_device("cuda", 2, 1, nccl, share=share) == (
        "cuda",
        backend,
        f"2 ranks share 1 GPU, {notice}",
    )
    assert placement.choose_device("cuda", 2, 2, nccl, share=share) == ("cuda", "cpu:gloo,cuda:nccl", "")


def test_the_oldest_nccl_of_all_nodes_decides() -> None:
    first, second = NodeShare(1, 1, nccl="2.30.7"), NodeShare(1, 1, nccl="2.9.8")
    assert placement.oldest_nccl([first, second]) == "2.9.8"
    assert placement.oldest_nccl([first, NodeShare(0, 1)]) == "2.30.7"
    assert placement.oldest_nccl([first, NodeShare(1, 1)]) == ""


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("cuda", "--device cuda needs a GPU, but this machine shows none; leave the option out to run on the CPU."),
        ("tpu", "The device 'tpu' is unknown; write --device auto, cpu or cuda."),
    ],
)
def test_a_device_that_is_not_there(asked: str, said: str) -> None:
    with pytest.raises(StartError) as refused:
        placement.choose_device(asked, 2, 0)
    assert str(refused.value) == said


def test_the_places() -> None:
    assert assign_places([NodeShare(3, cores=8)], "cpu", "gloo") == [
        RankPlacement(
            rank=rank,
            world_size=3,
            local_rank=rank,
            local_world_size=3,
            node_rank=0,
            nodes=1,
            device="cpu",
            backend="gloo",
            threads=2,
        )
        for rank in range(3)
    ]
    on_gpus = assign_places([NodeShare(3, cores=8, gpus=2)], "cuda", "gloo")
    assert [place.device for place in on_gpus] == ["cuda:0", "cuda:1", "cuda:0"]
    assert [place.sharing for place in on_gpus] == [2, 1, 2]
    assert assign_places([NodeShare(16, cores=8)], "cpu", "gloo")[0].threads == 1


def test_ranks_are_numbered_node_by_node_and_nodes_may_be_uneven() -> None:
    shares = [
        NodeShare(0, cores=64),  # it only steers
        NodeShare(2, cores=8, gpus=2, address="10.0.0.1"),
        NodeShare(1, cores=3, gpus=1, address="10.0.0.2"),
        NodeShare(3, cores=2, gpus=2, address="10.0.0.3"),
    ]
    places = assign_places(shares, "cuda", "cpu:gloo,cuda:nccl")
    assert [place.rank for place in places] == list(range(6))
    assert {place.world_size for place in places} == {6}
    assert {place.nodes for place in places} == {3}
    assert [place.node_rank for place in places] == [0, 0, 1, 2, 2, 2]
    assert [place.local_rank for place in places] == [0, 1, 0, 0, 1, 2]
    assert [place.local_world_size for place in places] == [2, 2, 1, 3, 3, 3]
    assert [place.device for place in places] == ["cuda:0", "cuda:1", "cuda:0", "cuda:0", "cuda:1", "cuda:0"]
    assert [place.threads for place in places] == [4, 4, 3, 1, 1, 1]
    assert [place.address for place in places] == ["10.0.0.1"] * 2 + ["10.0.0.2"] + ["10.0.0.3"] * 3
