"""The placement of ranks: nodes, local ranks, devices, threads. Pure functions of what the nodes reported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..errors import StartError
from ..protocol import RankPlacement
from ..protocol.common import LOOPBACK

_SHARES = (2, 30)
"""The first version of NCCL in which several ranks can have the same GPU."""


def check(n: int | None, nodes: int | None = None, device: str = "auto") -> None:
    """Refuse what no machine can do.

    Raises:
        StartError: there are to be no ranks, or no nodes, or more nodes than ranks; or the device is an unknown word.
    """
    if n is not None and n < 1:
        raise StartError(f"A world needs at least 1 rank, not {n}; write for example -n 4.")
    if nodes is not None:
        share_out(max(1, nodes) if n is None else n, nodes)
    if device not in ("auto", "cpu", "cuda"):
        raise StartError(f"The device {device!r} is unknown; write --device auto, cpu or cuda.")


def choose_size(asked: int | None, gpus: int, *, cores: int) -> int:
    """Decide how many ranks to start: the requested number, one per GPU, or 4 on the CPU (2 on one core).

    Args:
        asked: the requested number; None if there is none.
        gpus: the number of GPUs that the ranks would see.
        cores: the number of cores that they may run on.

    Raises:
        StartError: fewer than one was requested.
    """
    if asked is None:
        return gpus or (4 if cores > 1 else 2)
    check(asked)
    return asked


def can_share(nccl: str) -> bool:
    """Return whether several ranks can have the same GPU in this version of NCCL, such as "2.29.7"; "" is none.

    >>> can_share("2.30.7"), can_share("2.29.7"), can_share("")
    (True, False, False)
    """
    return bool(nccl) and _numbers(nccl) >= _SHARES


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def choose_device(asked: str, n: int, gpus: int, nccl: str = "", *, share: bool = False) -> tuple[str, str, str]:
    """Decide on which devices the ranks run.

    Args:
        asked: "auto", "cpu" or "cuda".
        n: the number of ranks.
        gpus: the number of GPUs they see.
        nccl: the version of NCCL they have; empty if they have none.
        share: ranks may share a GPU over NCCL, which `can_share`.

    Returns:
        The device's type, the backend, and a sentence for the user if the choice may surprise (or "").

    Raises:
        StartError: an unknown word, or CUDA was requested and there is no GPU.
    """
    check(None, device=asked)
    if asked == "cuda" and gpus == 0:
        raise StartError(
            "--device cuda needs a GPU, but this machine shows none; leave the option out to run on the CPU."
        )
    if asked == "cpu" or gpus == 0:
        return "cpu", "gloo", ""
    if n <= gpus:
        return "cuda", "cpu:gloo,cuda:nccl", ""
    few = f"{gpus} GPU" if gpus == 1 else f"{gpus} GPUs"
    if asked == "cuda" and share:
        return "cuda", "cpu:gloo,cuda:nccl", f"{n} ranks share {few}, over NCCL {nccl}, in which this is experimental."
    if asked == "cuda":
        return "cuda", "gloo", f"{n} ranks share {few}, over gloo: {_why_not_nccl(nccl)}"
    return (
        "cpu",
        "gloo",
        f"{n} ranks on {few}: the ranks run on the CPU; with --device cuda they share the GPU{'s' * (gpus > 1)}.",
    )


def _why_not_nccl(nccl: str) -> str:
    if can_share(nccl):
        return f"with --share they use NCCL {nccl}, in which this is experimental."
    here = f"NCCL {nccl} needs a GPU for each rank" if nccl else "this torch has no NCCL"
    return f"{here}. Version {'.'.join(map(str, _SHARES))}, which is in torch 2.14.1, lets ranks share one."


def share_out(n: int, nodes: int) -> list[int]:
    """Decide how many ranks each node gets: the first ones get one more if they cannot be shared evenly.

    >>> share_out(8, 3)
    [3, 3, 2]

    Raises:
        StartError: there are no nodes, or more than ranks.
    """
    if nodes < 1:
        raise StartError(f"A world needs at least 1 node, not {nodes}; write for example --nodes 2.")
    if nodes > n:
        raise StartError(f"{n} rank{'s' if n > 1 else ''} cannot be shared out over {nodes} nodes; start more ranks.")
    return [n // nodes + (node < n % nodes) for node in range(nodes)]


class NodeShare(NamedTuple):
    """What one node contributes to a world.

    Attributes:
        ranks: how many it has.
        cores: that they may run on.
        gpus: that they see.
        address: at which ranks of other nodes reach them.
        nccl: its version of NCCL; empty if it has none.
    """

    ranks: int
    cores: int
    gpus: int = 0
    address: str = LOOPBACK
    nccl: str = ""


def oldest_nccl(shares: Sequence[NodeShare]) -> str:
    """Return the oldest version of NCCL that a node with ranks has; empty if one has none."""
    versions = [share.nccl for share in shares if share.ranks]
    return min(versions, key=_numbers) if all(versions) else ""


def assign_places(shares: Sequence[NodeShare], device: str, backend: str) -> list[RankPlacement]:
    """Assign each rank of a world its place.

    Ranks are numbered node by node, as torchrun does. A node without ranks gets no node rank: such is the notebook's
    own machine if it only steers.

    Args:
        shares: of each node, in their order.
        device: "cpu" or "cuda"; local rank i takes GPU i modulo the number that its node has.
        backend: as `torch.distributed.init_process_group` takes it.

    Returns:
        The places in rank order.
    """
    nodes = [share for share in shares if share.ranks]
    world_size = sum(share.ranks for share in nodes)
    return [
        RankPlacement(
            rank=sum(before.ranks for before in nodes[:node_rank]) + local_rank,
            world_size=world_size,
            local_rank=local_rank,
            local_world_size=share.ranks,
            node_rank=node_rank,
            nodes=len(nodes),
            device=f"cuda:{local_rank % share.gpus}" if device == "cuda" else "cpu",
            backend=backend,
            threads=max(1, share.cores // share.ranks),
            address=share.address,
            sharing=len(range(local_rank % share.gpus, share.ranks, share.gpus)) if device == "cuda" else 1,
        )
        for node_rank, share in enumerate(nodes)
        for local_rank in range(share.ranks)
    ]
