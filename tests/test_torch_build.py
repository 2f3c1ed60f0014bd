"""What torch was built for, without importing it."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from nbcomm import torch_build
from nbcomm.torch_build import TorchBuild, installed, shows_no_gpu

VERSION = """from typing import Optional
__version__ = '2.13.0+{tag}'
debug = False
cuda: Optional[str] = {cuda}
hip: Optional[str] = {hip}
xpu: Optional[str] = None
"""


def put(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str | None) -> None:
    if text is not None:
        (folder / "version.py").write_text(text)
    spec = ModuleSpec("torch", None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    monkeypatch.setattr(torch_build.importlib.util, "find_spec", lambda _: spec)


@pytest.mark.parametrize(
    ("tag", "cuda", "hip", "gpus"),
    [("cpu", None, None, None), ("cu126", "12.6", None, "12.6"), ("rocm6.4", None, "6.4", "6.4")],
)
def test_a_build_says_what_it_is_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tag: str, cuda: str | None, hip: str | None, gpus: str | None
) -> None:
    put(monkeypatch, tmp_path, VERSION.format(tag=tag, cuda=repr(cuda), hip=repr(hip)))
    assert installed() == TorchBuild(f"2.13.0+{tag}", gpus, None, tmp_path)


@pytest.mark.parametrize("text", [None, "", "cuda = compute()", "cuda = "])
def test_what_cannot_be_read_is_not_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None) -> None:
    put(monkeypatch, tmp_path, text)
    assert installed() is None


def test_without_torch_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_build.importlib.util, "find_spec", lambda _: None)
    assert installed() is None


@pytest.mark.ranks
def test_it_says_what_torch_says_and_does_not_import_it() -> None:
    code = (
        "import sys; from nbcomm.torch_build import installed; build = installed(); assert 'torch' not in sys.modules\n"
        "import torch; import torch.distributed as dist\n"
        "assert (build.version, build.cuda) == (torch.__version__, torch.version.cuda or torch.version.hip)\n"
        "for name in ('nccl', 'ucc', 'mpi', 'xccl', 'gloo'):\n"
        "    assert build.lacks(name) != getattr(dist, f'is_{name}_available')(), name"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_backend_that_nobody_registers_is_lacking(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    build = TorchBuild("2.13.0+cpu", None, None, tmp_path)
    assert build.lacks("xyz")
    assert not build.lacks("gloo")
    assert not build.lacks("mpi"), "no library is found that could say so"
    monkeypatch.setattr(torch_build, "_plugins", lambda: True)
    assert not build.lacks("xyz"), "a package may register it when torch is imported"


@pytest.mark.parametrize(
    ("visible", "devices", "none"),
    [
        (None, ["null"], True),
        (None, ["null", "nvidiactl"], False),
        (None, ["dxg"], False),
        (None, ["kfd"], False),
        ("", ["nvidiactl"], True),
        ("-1", ["nvidiactl"], True),
        ("0", ["nvidiactl"], False),
        ("0", [], True),
    ],
)
def test_a_machine_without_a_driver_and_a_process_without_a_device_show_no_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, visible: str | None, devices: list[str], none: bool
) -> None:
    monkeypatch.setattr(torch_build.shutil, "which", lambda _: None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    for name in devices:
        (tmp_path / name).touch()
    assert shows_no_gpu(tmp_path) == none
    assert not shows_no_gpu(tmp_path / "missing") or visible in ("", "-1"), "a system without such files says nothing"
    monkeypatch.setattr(torch_build.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert shows_no_gpu(tmp_path) == (visible in ("", "-1"))


def test_a_gpu_that_torch_does_not_see_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert torch_build.why_unseen(tmp_path) == ""
    (tmp_path / "nvidiactl").touch()
    put(monkeypatch, tmp_path, VERSION.format(tag="cu130", cuda="'13.0'", hip=None))
    assert torch_build.why_unseen(tmp_path) == (
        "This machine seems to have a GPU, but torch 2.13.0+cu130 for CUDA or ROCm 13.0 sees none: the driver may be "
        "too old for it, or the GPU hidden, so the ranks run on the CPU. Try !nbcomm doctor."
    )
    put(monkeypatch, tmp_path, VERSION.format(tag="cpu", cuda=None, hip=None))
    assert "torch 2.13.0+cpu is a build without GPUs, so the ranks" in torch_build.why_unseen(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert torch_build.why_unseen(tmp_path) == ""
