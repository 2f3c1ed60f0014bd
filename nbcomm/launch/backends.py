"""Which devices and backends a world can have: what cannot work is refused before a rank starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import StartError

if TYPE_CHECKING:
    from ..torch_build import TorchBuild

INSTALL = "install a build for your GPU from https://pytorch.org/get-started"


def named_in(backend: str) -> dict[str, str]:
    """Return the backend of each device, as torch reads it; of a single one the device is "".

    >>> named_in("cpu:gloo,cuda:nccl"), named_in("gloo")
    ({'cpu': 'gloo', 'cuda': 'nccl'}, {'': 'gloo'})

    Raises:
        StartError: it is not written as such.
    """
    parts = [part.strip().lower() for part in backend.split(",")]
    pairs = [part.split(":") for part in parts]
    if len(parts) == 1 and ":" not in parts[0] and parts[0]:
        return {"": parts[0]}
    if any(len(pair) != 2 or not all(pair) for pair in pairs):
        raise StartError(
            f"The backend {backend!r} is malformed; write one such as gloo, or one for each device: cpu:gloo,cuda:nccl."
        )
    return dict(pairs)


def told(backend: str, *, ours: bool) -> str:
    """Return a backend in words, with torch's class for NCCL, of which torch 2.15 has two.

    >>> told("cpu:gloo,cuda:nccl", ours=True)
    'cpu:gloo,cuda:nccl (ProcessGroupNCCL)'

    Args:
        backend: as torch reads it.
        ours: nbcomm has made the groups, and not torch.
    """
    return f"{backend} (ProcessGroupNCCL)" if ours and "nccl" in backend else backend


def check(  # noqa: PLR0913 - the last by keyword
    device: str,
    backend: str | None,
    build: TorchBuild | None,
    gpus: int | None,
    n: int | None,
    *,
    share: bool = False,
) -> None:
    """Refuse what certainly does not work here.

    Args:
        device: "auto", "cpu" or "cuda".
        backend: what was asked for, if anything.
        build: the torch that the ranks have; None if it is not known.
        gpus: how many GPUs they see; None if that is not known yet.
        n: how many ranks there are; None if that is not known yet.
        share: NCCL may serve several ranks on one GPU, as far as that is known.

    Raises:
        StartError: the device or the backend cannot be.
    """
    has_none = "" if gpus != 0 else "this machine shows none"
    if build is not None and build.cuda is None:
        has_none = f"torch {build.version} is a build without GPUs"
    remedy = f", or {INSTALL}" if build is not None and build.cuda is None else ""
    if device == "cuda" and has_none:
        raise StartError(
            f"--device cuda needs a GPU, but {has_none}. Nothing was started. Leave the option out to run on the "
            f"CPU{remedy}."
        )
    names = named_in(backend) if backend else {}
    for name in names.values():
        if name == "nccl" and has_none:
            raise StartError(
                f"--backend {backend} needs GPUs, but {has_none}. Nothing was started. Leave the option out to use "
                f"gloo on the CPU{remedy}."
            )
        if build is not None and build.lacks(name):
            raise StartError(
                f"torch {build.version} has no backend {name!r}. Nothing was started. Leave --backend out, or write "
                f"gloo{'' if has_none else ', or nccl with a GPU for each rank'}."
            )
    if "nccl" in names.values() and not (share and device == "cuda"):
        _check_nccl(device, f"{backend}", gpus, n, alone="" in names)


def _check_nccl(device: str, backend: str, gpus: int | None, n: int | None, *, alone: bool) -> None:
    """Refuse NCCL where it does not fit the ranks: it wants a GPU for each, and moves nothing of a CPU."""
    few = gpus is not None and n is not None and gpus < n
    on_cpu = device == "cpu" or (device == "auto" and few)
    if few and (device == "cuda" or (alone and device == "auto")):
        raise StartError(
            f"--backend {backend} needs a GPU for each rank, but {n} ranks would share {gpus}. Nothing was started. "
            f"Write -n {gpus}, or leave --backend out{' to use gloo' if device == 'cuda' else ''}."
        )
    if alone and on_cpu:
        raise StartError(
            f"--backend {backend} moves only what is on a GPU, but --device cpu puts the ranks on the CPU. Nothing was "
            "started. Leave one of the two options out."
        )
