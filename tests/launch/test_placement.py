"""How many ranks, on what, and which sits where."""

from __future__ import annotations

import pytest

from nbcomm.errors import StartError
from nbcomm.launch import placement
from nbcomm.protocol import Hello


def hellos(n: int) -> list[Hello]:
    return [Hello(rank, 100 + rank, "host", 0, "2.13.0") for rank in reversed(range(n))]


@pytest.mark.parametrize(
    ("asked", "gpus", "cores", "size"), [(None, 8, 4, 8), (None, 0, 4, 4), (None, 0, 1, 2), (3, 8, 1, 3)]
)
def test_the_size(monkeypatch: pytest.MonkeyPatch, asked: int | None, gpus: int, cores: int, size: int) -> None:
    monkeypatch.setattr(placement, "usable_cores", lambda: cores)
    assert placement.choose_size(asked, gpus) == size


@pytest.mark.parametrize(("asked", "said"), [(0, "at least 1 rank"), (-1, "at least 1 rank"), (10**6, "do not fit")])
def test_a_size_that_cannot_be(asked: int, said: str) -> None:
    with pytest.raises(StartError, match=said):
        placement.choose_size(asked, 0)


@pytest.mark.parametrize(
    ("asked", "n", "gpus", "kind", "backend", "notice"),
    [
        ("auto", 4, 0, "cpu", "gloo", ""),
        ("cpu", 4, 8, "cpu", "gloo", ""),
        ("auto", 4, 4, "cuda", "cpu:gloo,cuda:nccl", ""),
        ("auto", 2, 8, "cuda", "cpu:gloo,cuda:nccl", ""),
        ("auto", 4, 1, "cpu", "gloo", "4 ranks on 1 GPU: the ranks run on the CPU"),
        ("cuda", 4, 2, "cuda", "gloo", "4 ranks share 2 GPUs"),
        ("cuda", 2, 2, "cuda", "cpu:gloo,cuda:nccl", ""),
    ],
)
def test_the_device(asked: str, n: int, gpus: int, kind: str, backend: str, notice: str) -> None:
    chosen = placement.choose_device(asked, n, gpus)
    assert chosen[:2] == (kind, backend)
    assert chosen[2].startswith(notice)
    assert bool(chosen[2]) == bool(notice)


@pytest.mark.parametrize(("asked", "said"), [("cuda", "shows none"), ("tpu", "unknown")])
def test_a_device_that_is_not_there(asked: str, said: str) -> None:
    with pytest.raises(StartError, match=said):
        placement.choose_device(asked, 2, 0)


def test_the_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "usable_cores", lambda: 8)
    places = placement.assign_places(hellos(3), "cpu", "gloo", 0)
    assert [(p.rank, p.local_rank, p.node_rank, p.world_size, p.device, p.threads) for p in places] == [
        (rank, rank, 0, 3, "cpu", 2) for rank in range(3)
    ]
    assert [p.device for p in placement.assign_places(hellos(3), "cuda", "gloo", 2)] == ["cuda:0", "cuda:1", "cuda:0"]
    assert placement.assign_places(hellos(16), "cpu", "gloo", 0)[0].threads == 1
