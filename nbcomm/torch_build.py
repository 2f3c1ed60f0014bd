"""What the installed torch was built for, and whether this machine shows a GPU; without importing torch.

A notebook never imports torch, and must know before a start what a rank would find out half a minute later.
"""

from __future__ import annotations

import ast
import importlib.util
import mmap
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

_DRIVERS = ("nvidiactl", "dxg", "nvmap", "kfd")
"""What is in /dev where a GPU can be used: of NVIDIA, of NVIDIA in WSL and in a Jetson, of AMD."""


class TorchBuild(NamedTuple):
    """A build of torch.

    Attributes:
        version: such as "2.13.0+cpu".
        cuda: the version of CUDA that it was built for, or of ROCm; None for a build without GPUs.
        xpu: that of Intel's GPUs, or None.
        folder: where it is installed.
    """

    version: str
    cuda: str | None
    xpu: str | None
    folder: Path

    def lacks(self, backend: str) -> bool:
        """Return whether it is certain that this build does not have a backend.

        `torch.distributed` has NCCL in builds for GPUs only. UCC's and MPI's names are in the library of Python's side
        where they are built in.
        """
        if backend == "nccl":
            return self.cuda is None
        if backend == "xccl":
            return self.xpu is None
        if backend in ("ucc", "mpi"):
            return _lacks_text(self.folder / "lib" / "libtorch_python.so", f"ProcessGroup{backend.upper()}")
        return backend != "gloo" and not _plugins()


def _plugins() -> bool:
    """Return whether packages are installed that torch imports with itself: they may register backends."""
    from importlib.metadata import entry_points  # no start needs it but one that names an unknown backend

    return bool(entry_points(group="torch.backends"))


def installed() -> TorchBuild | None:
    """Return the build that this Python would import; None if that cannot be read."""
    with suppress(ImportError, ValueError, OSError, SyntaxError):
        spec = importlib.util.find_spec("torch")
        for place in (spec.submodule_search_locations or ()) if spec is not None else ():
            known = _constants((Path(place) / "version.py").read_text(encoding="utf-8"))
            if "cuda" in known:  # as of every build
                gpus = known["cuda"] or known.get("hip") or known.get("rocm")
                return TorchBuild(str(known.get("__version__", "")), gpus, known.get("xpu"), Path(place))
    return None


def shows_no_gpu(devices: Path = Path("/dev")) -> bool:
    """Return whether it is certain that no process here sees a GPU of CUDA or ROCm."""
    return _are_hidden() or (devices.is_dir() and not (shutil.which("nvidia-smi") or _has_driver(devices)))


def why_unseen(devices: Path = Path("/dev")) -> str:
    """Return a sentence for a start on the CPU because torch sees no GPU, if this machine seems to have one."""
    if _are_hidden() or not _has_driver(devices):
        return ""
    build = installed()
    if build is None or build.cuda is None:
        what = "is a build without GPUs"
    else:
        what = f"for CUDA or ROCm {build.cuda} sees none: the driver may be too old for it, or the GPU hidden"
    name = f"torch {build.version}" if build is not None else "this torch"
    return f"This machine seems to have a GPU, but {name} {what}, so the ranks run on the CPU. Try !nbcomm doctor."


def _are_hidden() -> bool:
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    return hidden is not None and hidden.strip() in ("", "-1", "NoDevFiles")


def _has_driver(devices: Path) -> bool:
    return any((devices / name).exists() for name in _DRIVERS)


def _constants(source: str) -> dict[str, str | None]:
    """Return the texts, and the None, that a module binds to names."""
    known: dict[str, str | None] = {}
    for line in ast.parse(source).body:
        if not isinstance(line, ast.Assign | ast.AnnAssign) or not isinstance(line.value, ast.Constant):
            continue
        value = line.value.value
        for name in line.targets if isinstance(line, ast.Assign) else [line.target]:
            if isinstance(name, ast.Name) and (value is None or isinstance(value, str)):
                known[name.id] = value
    return known


def _lacks_text(file: Path, text: str) -> bool:
    with suppress(OSError, ValueError), file.open("rb") as opened, _mapped(opened) as library:
        return library.find(text.encode()) < 0
    return False


def _mapped(file: IO[bytes]) -> mmap.mmap:
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
