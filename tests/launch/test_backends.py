"""Devices and backends that cannot be, before a rank starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from nbcomm.errors import StartError
from nbcomm.launch.backends import check, named_in, told
from nbcomm.torch_build import TorchBuild

CPU, CUDA = TorchBuild("2.13.0+cpu", None, None, Path()), TorchBuild("2.13.0+cu126", "12.6", None, Path())
ON_GPUS = "cpu:gloo,cuda:nccl"


@pytest.mark.parametrize(
    ("device", "backend", "build", "gpus", "n", "said"),
    [
        ("auto", "nccl", CPU, None, 4, "--backend nccl needs GPUs, but torch 2.13.0+cpu is a build without GPUs. "),
        ("auto", ON_GPUS, CPU, None, None, f"--backend {ON_GPUS} needs GPUs, but torch 2.13.0+cpu is a build without "),
        ("cuda", None, CPU, None, None, "--device cuda needs a GPU, but torch 2.13.0+cpu is a build without GPUs. "),
        ("auto", "NCCL", CUDA, 0, None, "--backend NCCL needs GPUs, but this machine shows none. "),
        ("cuda", "gloo", CUDA, 0, 2, "--device cuda needs a GPU, but this machine shows none. "),
        ("cuda", None, None, 0, 2, "--device cuda needs a GPU, but this machine shows none. "),
        ("auto", "ucc", CUDA._replace(folder=Path(__file__).parent), None, 2, ""),
        (
            "auto",
            "xyz",
            CUDA,
            None,
            2,
            "torch 2.13.0+cu126 has no backend 'xyz'. Nothing was started. Leave --backend ",
        ),
        ("auto", "nccl", None, 2, 4, "--backend nccl needs a GPU for each rank, but 4 ranks would share 2. "),
        ("cuda", ON_GPUS, None, 1, 2, f"--backend {ON_GPUS} needs a GPU for each rank, but 2 ranks would share 1. "),
        (
            "cpu",
            "nccl",
            CUDA,
            None,
            None,
            "--backend nccl moves only what is on a GPU, but --device cpu puts the ranks ",
        ),
        ("auto", "cpu:gloo,", None, None, None, "The backend 'cpu:gloo,' is malformed; write one such as gloo, or "),
        ("auto", ":", None, None, None, "The backend ':' is malformed"),
    ],
)
def test_what_cannot_be_is_refused(
    device: str, backend: str | None, build: TorchBuild | None, gpus: int | None, n: int | None, said: str
) -> None:
    if not said:  # its library is not found: it may have the backend
        check(device, backend, build, gpus, n)
        return
    with pytest.raises(StartError) as refused:
        check(device, backend, build, gpus, n)
    assert str(refused.value).startswith(said)
    assert "Nothing was started." in str(refused.value) or "malformed" in said or "malformed" in str(refused.value)


@pytest.mark.parametrize(
    ("device", "backend", "build", "gpus", "n"),
    [
        ("auto", None, CPU, 0, 4),
        ("cpu", "gloo", CPU, 0, 4),
        ("auto", "cpu:gloo", CPU, 0, 4),
        ("cuda", "gloo", CUDA, None, 4),
        ("cuda", "gloo", CUDA, 1, 4),
        ("auto", "nccl", CUDA, None, 4),
        ("auto", "nccl", None, 4, 4),
        ("auto", ON_GPUS, None, 2, 4),  # on the CPU, where gloo serves them
        ("auto", "xyz", None, None, 4),  # of another machine
    ],
)
def test_what_may_work_is_tried(
    device: str, backend: str | None, build: TorchBuild | None, gpus: int | None, n: int | None
) -> None:
    check(device, backend, build, gpus, n)


def test_nccl_may_serve_ranks_that_share_a_gpu() -> None:
    check("cuda", "nccl", None, 1, 2, share=True)
    with pytest.raises(StartError, match="needs a GPU for each rank, but 2 ranks would share 1"):
        check("cuda", "nccl", None, 1, 2, share=False)
    with pytest.raises(StartError, match="needs a GPU, but this machine shows none"):
        check("cuda", "nccl", None, 0, 2, share=True)


def test_a_remedy_names_both_ways_out() -> None:
    with pytest.raises(StartError) as refused:
        check("auto", "nccl", CPU, None, 4)
    assert str(refused.value).endswith(
        "Leave the option out to use gloo on the CPU, or install a build for your GPU from "
        "https://pytorch.org/get-started."
    )


def test_each_device_may_have_its_own() -> None:
    assert named_in(" CPU:gloo, cuda:NCCL ") == {"cpu": "gloo", "cuda": "nccl"}


def test_a_status_names_torchs_class_for_nccl_where_nbcomm_has_made_it() -> None:
    assert told("nccl", ours=True) == "nccl (ProcessGroupNCCL)"
    assert told("nccl", ours=False) == "nccl"
    assert told("gloo", ours=True) == "gloo"
