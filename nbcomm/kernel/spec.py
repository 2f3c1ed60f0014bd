"""The kernel's spec, with which Jupyter lists and starts it."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
from pathlib import Path

from ipykernel.kernelspec import get_kernel_dict, make_ipkernel_cmd
from jupyter_client.kernelspec import KernelSpecManager

from ..errors import SteeringError

NAME = "nbcomm"
_MODULE = "nbcomm.kernel"
_NAMES = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LOGO = Path(__file__).with_name("logo-svg.svg")


def described(n: int | None = None, device: str = "auto") -> dict[str, object]:
    """Return the content of kernel.json: ipykernel's own, with another command and name."""
    options = [*([] if n is None else ["-n", str(n)]), *([] if device == "auto" else ["--device", device])]
    ranks = "" if n is None else ", 1 rank" if n == 1 else f", {n} ranks"
    return {
        **get_kernel_dict(),
        "argv": make_ipkernel_cmd(_MODULE, extra_arguments=options),
        "display_name": f"PyTorch distributed{ranks} (nbcomm)",
        "interrupt_mode": "signal",
        # Else debugpy warns on stderr, in the very first output, that it cannot stop in some of Python's own modules.
        "env": {"PYDEVD_DISABLE_FILE_VALIDATION": "1"},
    }


def kernels_of(prefix: str | None = None, *, user: bool = False) -> Path:
    """Return the folder of kernels: that of an environment or the user; by default this environment's, if virtual."""
    virtual = sys.prefix != sys.base_prefix or Path(sys.prefix, "conda-meta").exists()
    if prefix is None and not user and virtual:
        prefix = sys.prefix
    return Path(prefix, "share/jupyter/kernels") if prefix is not None else Path(KernelSpecManager().user_kernel_dir)


def install(folder: Path, n: int | None = None, *, device: str = "auto", name: str = NAME) -> Path:
    """Install the kernel; it replaces an earlier one of ours with that name.

    Args:
        folder: the folder of kernels.
        n: number of ranks; None for one per GPU; without a GPU 4, or 2 on a machine with one core.
        device: "auto", "cpu" or "cuda".
        name: its name in Jupyter, as in ``--kernel NAME``.

    Returns:
        The directory of its spec.

    Raises:
        SteeringError: the number or the name is not valid, or the folder cannot be written.
    """
    if n is not None and n < 1:
        raise SteeringError(f"A world needs at least 1 rank, not {n}; nothing was installed.")
    if not _NAMES.fullmatch(name):
        raise SteeringError(
            f"{name!r} is not a valid kernel name: use letters, digits, - . and _, and begin with a letter "
            "or digit; nothing was installed."
        )
    place = folder / name.lower()  # Jupyter searches for lower-case names
    if place.exists() and not _is_ours(place):
        raise SteeringError(f"The kernel in {place} is not nbcomm's, so nothing was installed; choose another name.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Made beside its place, so that a server always finds either the old one or the new one.
        with tempfile.TemporaryDirectory(dir=folder, prefix=".nbcomm-") as made:
            new = Path(made, "new")
            new.mkdir()
            (new / "kernel.json").write_text(json.dumps(described(n, device), indent=1) + "\n", encoding="utf-8")
            shutil.copyfile(_LOGO, new / _LOGO.name)
            if place.exists():
                place.rename(Path(made, "old"))
            new.rename(place)
    except OSError as error:
        raise SteeringError(f"The kernel could not be written to {place}: {error.strerror or error}.") from error
    return place


def remove(name: str = NAME, folder: Path | None = None) -> Path:
    """Remove the kernel.

    Args:
        name: its name in Jupyter.
        folder: the folder of kernels; by default the first in which Jupyter finds that name.

    Returns:
        The directory that was removed.

    Raises:
        SteeringError: there is no such kernel, it is not ours, or it cannot be removed.
    """
    manager = KernelSpecManager(ensure_native_kernel=False)
    if folder is not None:
        manager.kernel_dirs = [str(folder)]
    found = manager.find_kernel_specs().get(name.lower())
    if found is None:
        raise SteeringError(f"There is no kernel {name!r} in {folder or 'any folder where Jupyter looks'}.")
    place = Path(found)
    if not _is_ours(place):
        raise SteeringError(f"The kernel in {place} is not nbcomm's, so it was not removed.")
    try:
        shutil.rmtree(place)
    except OSError as error:
        raise SteeringError(f"The kernel in {place} could not be removed: {error.strerror or error}.") from error
    return place


def _is_ours(place: Path) -> bool:
    try:
        return _MODULE in json.loads((place / "kernel.json").read_text(encoding="utf-8"))["argv"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
