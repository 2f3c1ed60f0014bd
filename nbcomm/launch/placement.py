"""The placement of ranks: nodes, local ranks, devices, threads. Pure functions of what the engines reported."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import StartError
from ..protocol import Hello, RankPlacement

_PER_RANK = 96 << 20
"""A generous estimate of the bytes of memory that a rank takes without tensors."""


def choose_size(asked: int | None, gpus: int, *, cores: int, memory: int) -> int:
    """Decide how many ranks to start: the requested number, one per GPU, or 4 on the CPU (2 on one core).

    Args:
        asked: the requested number; None if there is none.
        gpus: the number of GPUs that the ranks would see.
        cores: the number of cores that they may run on.
        memory: bytes of memory that are free.

    Raises:
        StartError: fewer than one was requested, or more than fit into the machine's memory.
    """
    if asked is None:
        return gpus or (4 if cores > 1 else 2)
    if asked < 1:
        raise StartError(f"A world needs at least 1 rank, not {asked}; write for example -n 4.")
    holds = max(1, memory // _PER_RANK)
    if asked > holds:
        raise StartError(
            f"{asked} ranks do not fit into this machine: "
            f"its {memory / 2**30:.1f} GiB of free memory are enough for about {holds}."
        )
    return asked


def choose_device(asked: str, n: int, gpus: int) -> tuple[str, str, str]:
    """Decide on which devices the ranks run.

    Args:
        asked: "auto", "cpu" or "cuda".
        n: the number of ranks.
        gpus: the number of GPUs they see.

    Returns:
        The device's type, the backend, and a sentence for the user if the choice may surprise (or "").

    Raises:
        StartError: an unknown word, or CUDA was requested and there is no GPU.
    """
    if asked not in ("auto", "cpu", "cuda"):
        raise StartError(f"The device {asked!r} is unknown; write --device auto, cpu or cuda.")
    if asked == "cuda" and gpus == 0:
        raise StartError(
            "--device cuda needs a GPU, but this machine shows none; leave the option out to run on the CPU."
        )
    if asked == "cpu" or gpus == 0:
        return "cpu", "gloo", ""
    if n <= gpus:
        return "cuda", "cpu:gloo,cuda:nccl", ""
    if asked == "cuda":
        return (
            "cuda",
            "gloo",
            f"{n} ranks share {gpus} GPU{'s' if gpus > 1 else ''}, over gloo: NCCL needs one GPU per rank.",
        )
    few = f"{gpus} GPU" if gpus == 1 else f"{gpus} GPUs"
    return (
        "cpu",
        "gloo",
        f"{n} ranks on {few}: the ranks run on the CPU; with --device cuda they share the GPU{'s' * (gpus > 1)}.",
    )


def assign_places(hellos: Iterable[Hello], device: str, backend: str, gpus: int, *, cores: int) -> list[RankPlacement]:
    """Assign each rank of a world on one machine its place.

    Args:
        hellos: one from each engine; a rank is its engine's id.
        device: "cpu" or "cuda".
        backend: as `torch.distributed.init_process_group` takes it.
        gpus: the number of GPUs that the ranks see; rank i takes GPU i modulo this number.
        cores: the number of cores that they may run on.

    Returns:
        The places in rank order.
    """
    ranks = sorted(hello.rank for hello in hellos)
    n = len(ranks)
    threads = max(1, cores // n)
    return [
        RankPlacement(
            rank=rank,
            world_size=n,
            local_rank=rank,
            local_world_size=n,
            node_rank=0,
            nodes=1,
            device=f"cuda:{rank % gpus}" if device == "cuda" else "cpu",
            backend=backend,
            threads=threads,
        )
        for rank in ranks
    ]
