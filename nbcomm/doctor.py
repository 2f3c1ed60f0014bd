"""Checks that this machine has what nbcomm needs; each check is one small function with one sentence.

A check takes what it examines as arguments, whose defaults examine this machine; tests pass other arguments.
A failure means that worlds will not run; a warning, that something will be slow, missing or surprising.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import zmq
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from .durations import is_time
from .errors import CellError, StartError
from .launch.backends import INSTALL
from .launch.placement import can_share, choose_size
from .node.processes.resources import free_memory, usable_cores
from .node.seed import client as seed
from .node.seed.inheritance import WARM_VARIABLE
from .node.seed.messages import stay_of
from .notebook.cluster.startup import TORCHS_OWN_GROUPS
from .torch_build import TorchBuild, installed
from .torch_versions import NEWEST, OLDEST, limits, untested
from .world_dir import WorldDir

_MB = 1 << 20
_GB = 1 << 30
_MANY_RANKS = 64
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "firefox")


class CheckResult(NamedTuple):
    """The result of a check, with a full sentence, which says what to do unless the level is ok."""

    level: Literal["ok", "warn", "fail"]
    sentence: str


def findings() -> Iterator[tuple[str, CheckResult]]:
    """Run the checks one by one as the caller iterates, and yield each one's subject and verdict."""
    yield "Python", _guarded(python)
    yield "packages", _guarded(packages)
    torch, verdict = load_torch()
    yield "torch", verdict
    if torch is not None:
        yield "tested", _guarded(lambda: tested(torch.__version__))
        yield "gloo", _guarded(lambda: gloo(torch.distributed))
        yield "GPUs", _guarded(lambda: gpus(torch.cuda.device_count()))
        yield "NCCL", _guarded(lambda: nccl(torch.cuda.device_count(), torch.distributed, torch.cuda))
        yield "cores, memory", _guarded(lambda: room(_default_size(torch.cuda.device_count())))
    yield "fork", _guarded(fork)
    yield "warm start", _guarded(warm_start)
    yield "private directory", _guarded(private_directory)
    yield "loopback", _guarded(loopback)
    yield "shared memory", _guarded(shared_memory)
    yield "open files", _guarded(open_files)
    yield "encryption", _guarded(encryption)
    if torch is not None:
        yield "world", _guarded(world)
    yield "front end", _guarded(front_end)
    yield "widgets", _guarded(widgets)
    yield "browser", _guarded(browser)
    yield "Slurm", _guarded(slurm)


def _guarded(check: Callable[[], CheckResult]) -> CheckResult:
    """Run a check; one that raises gives a verdict, not a crash."""
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - any error is reported
        return CheckResult("fail", f"The check itself failed: {type(error).__name__}: {error}")


# ── Python and its packages ─────────────────────────────────────────────────────────────────────────


def python(version: str = ".".join(map(str, sys.version_info[:3]))) -> CheckResult:
    """Check that nbcomm's metadata allows this version of Python."""
    wanted = importlib.metadata.metadata("nbcomm")["Requires-Python"]
    if not SpecifierSet(wanted).contains(version):
        return CheckResult("fail", f"This is Python {version}; nbcomm needs {wanted}.")
    return CheckResult("ok", f"Python {version} at {sys.executable}.")


def packages(
    requirements: list[str] | None = None, installed: Callable[[str], str] = importlib.metadata.version
) -> CheckResult:
    """Check that every package that nbcomm's metadata requires is installed, in a version that it allows."""
    missing = []
    found = []
    for requirement in map(Requirement, _requirements() if requirements is None else requirements):
        try:
            version = installed(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(f"'{requirement}'")
            continue
        if requirement.specifier.contains(version, prereleases=True):
            found.append(f"{requirement.name} {version}")
        else:
            missing.append(f"'{requirement}' (here: {version})")
    if missing:
        what = ", ".join(missing)
        return CheckResult("fail", f"Missing or too old: {what}. Run: {sys.executable} -m pip install -U nbcomm")
    kernels = [package for package in found if package.startswith("ipy")]
    return CheckResult("ok", f"All {len(found)} packages are installed, among them {', '.join(kernels)}.")


def _requirements() -> list[str]:
    """Return nbcomm's requirements at run time, without its extras."""
    lines = importlib.metadata.requires("nbcomm") or []
    for_this_python = {line: Requirement(line).marker for line in lines if "extra ==" not in line}
    return [line for line, marker in for_this_python.items() if marker is None or marker.evaluate()]


def load_torch(
    load: Callable[[str], Any] = importlib.import_module, clock: Callable[[], float] = time.perf_counter
) -> tuple[Any, CheckResult]:
    """Import torch and say how long it took: no world starts faster. Return None and a verdict if it fails."""
    began = clock()
    try:
        torch = load("torch")
    except Exception as error:  # noqa: BLE001 - a broken shared library raises OSError, a broken build anything
        return None, CheckResult(
            "fail",
            f"import torch fails: {type(error).__name__}: {error}. See https://pytorch.org/get-started.",
        )
    seconds = clock() - began
    if seconds > 20:
        advice = "Every start takes as long: put the environment on a local disk."
        return torch, CheckResult("warn", f"torch {torch.__version__} took {seconds:.0f} s to import. {advice}")
    return torch, CheckResult("ok", f"torch {torch.__version__}, imported in {seconds:.1f} s.")


# ── torch's backends and devices ────────────────────────────────────────────────────────────────────


def gloo(distributed: Any) -> CheckResult:
    """Check that this torch has gloo, which carries CPU tensors and Python objects in every world."""
    if distributed.is_available() and distributed.is_gloo_available():
        return CheckResult("ok", "gloo is built in: worlds on the CPU work.")
    return CheckResult("fail", "This torch is built without gloo; install one from https://pytorch.org/get-started.")


def tested(version: str) -> CheckResult:
    """Check that nbcomm was tested with this version of torch."""
    if sentence := untested(version):
        return CheckResult("warn", f"{sentence} See the check of a world below.")
    return CheckResult("ok", f"nbcomm was tested with torch {OLDEST} to {NEWEST}. {limits(version)}".rstrip())


def _ask_driver(program: str) -> str:
    """Return the names of the GPUs, each once, and the driver's version; empty if it does not answer."""
    query = [program, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)  # noqa: S603 - the driver's
    except (OSError, subprocess.SubprocessError):
        return ""
    told = [line.split(", ") for line in done.stdout.splitlines() if line.count(", ") == 1]
    names = ", ".join(dict.fromkeys(name for name, _ in told))
    return f"{names}; driver {told[0][1]}" if told else ""


def gpus(
    count: int,
    driver: str | None = shutil.which("nvidia-smi"),
    build: Callable[[], TorchBuild | None] = installed,
    asked: Callable[[str], str] = _ask_driver,
) -> CheckResult:
    """Count the GPUs that torch sees, and check whether the machine has GPUs that it does not see."""
    if count:
        told = asked(driver) if driver else ""
        return CheckResult("ok", f"torch sees {count}{told and f' ({told})'}: a world starts with one rank per GPU.")
    if driver:
        found = build()
        why = (
            f"torch {found.version} is a build without GPUs: {INSTALL}"
            if found is not None and found.cuda is None
            else "torch sees no GPU: check CUDA_VISIBLE_DEVICES, and that the driver is new enough for its CUDA"
        )
        return CheckResult("warn", f"nvidia-smi is installed, but {why}. Ranks run on the CPU.")
    return CheckResult("ok", "No GPU here: ranks run on the CPU with gloo.")


def _nccl_version() -> str:
    from .torch_internals import nccl  # with torch

    return nccl.version()


def _mps_runs() -> bool:
    """Return whether CUDA's Multi-Process Service, which lets processes use a GPU at the same time, runs here."""
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")  # noqa: S108 - NVIDIA's default
    return Path(folder, "control").exists()


def nccl(
    count: int,
    distributed: Any,
    cuda: Any = None,
    version: Callable[[], str] = _nccl_version,
    mps: Callable[[], bool] = _mps_runs,
) -> CheckResult:
    """Check that this torch has NCCL, if there are GPUs, and that these reach each other."""
    if not count:
        return CheckResult("ok", "Not needed without GPUs.")
    if not (distributed.is_available() and distributed.is_nccl_available()):
        why = "This torch is built without NCCL; start worlds with --backend gloo, which is slower."
        return CheckResult("warn", why)
    found = version()
    told = f"NCCL {found} (ProcessGroupNCCL): tensors go from GPU to GPU."
    if can_share(found):
        at_once = "at the same time, by MPS" if mps() else "in turns, for MPS does not run"
        told = f"{told} With --share several ranks use one GPU, {at_once}."
    far = [other for other in range(1, count) if not cuda.can_device_access_peer(0, other)]
    if far:
        return CheckResult(
            "warn", f"{told} GPU 0 reaches GPU {far[0]} only through the host's memory, which is slower."
        )
    return CheckResult("ok", told)


def _default_size(gpus: int) -> int:
    return choose_size(None, gpus, cores=usable_cores())


def room(ranks: int, cores: int | None = None, memory: int | None = None) -> CheckResult:
    """Check that there are cores and memory (bytes, available now) for the ranks of a default world."""
    cores = usable_cores() if cores is None else cores
    memory = free_memory() if memory is None else memory
    each = memory / ranks
    facts = f"{cores} core{'s' if cores > 1 else ''} and {each / _GB:.1f} GB of free memory for each of {ranks} ranks"
    if each < 256 * _MB:
        return CheckResult("fail", f"{facts}: a rank needs 0.25 GB. Free some, or start with fewer ranks.")
    if each < _GB:
        return CheckResult("warn", f"{facts}: enough to start, tight for models. Start with fewer ranks.")
    if cores < ranks:
        return CheckResult("warn", f"{facts}: ranks will take turns.")
    return CheckResult("ok", f"{facts}.")


# ── a world ─────────────────────────────────────────────────────────────────────────────────────────

_TRIAL = (
    ("a reduction", "found = int(all_reduce(rank + 1))", [3, 3]),
    ("a broadcast of an object", "found = broadcast({'from': rank}, src=1)['from']", [1, 1]),
    ("torch's own all_reduce", "found = torch.ones(1); dist.all_reduce(found); found = found.item()", [2.0, 2.0]),
)
"""The trials in a world of two: a name, a cell, and what ``found`` must be on each rank."""

_HANG = "if rank == 0: barrier()"


def world(start: Callable[[], Any] | None = None) -> CheckResult:
    """Check that the ranks of a real world give right values, also after a wait that could never end."""
    if start is None:
        from . import start as start_world

        start = functools.partial(start_world, 2, device="cpu")
    began = time.perf_counter()
    with start() as session:
        if wrong := _try_cells(session):
            return CheckResult("fail", f"In a world of two ranks {wrong}. Do not trust results here.")
        if session.plain:
            return CheckResult("warn", f"A world of two ranks gives right values. {TORCHS_OWN_GROUPS} {session.plain}")
        try:
            session.run(_HANG, quiet=True)
        except CellError as error:
            if "HangError" not in str(error):
                raise
        else:
            return CheckResult(
                "fail", "In a world of two ranks a barrier ended on rank 0 although rank 1 never called it."
            )
        if wrong := _try_cells(session):
            return CheckResult("fail", f"After an abort, in a world of two ranks, {wrong}. Do not trust results here.")
    seconds = time.perf_counter() - began
    return CheckResult(
        "ok",
        f"Two ranks gave right values, before and after a hang that was ended, in {seconds:.1f} s. "
        f"{session.how_started}",
    )


def _try_cells(session: Any) -> str:
    """Return what went wrong; an empty text if nothing did."""
    for what, code, true in _TRIAL:
        session.run(code, quiet=True)
        found = session.pull("found")
        if found != true:
            return f"{what} gave {found} instead of {true}"
    return ""


# ── the system ──────────────────────────────────────────────────────────────────────────────────────


def fork(platform: str = sys.platform, *, can_fork: bool = hasattr(os, "fork")) -> CheckResult:
    """Check that ranks can be forked from a process that has imported torch."""
    if not can_fork:
        return CheckResult("fail", f"{platform} cannot fork processes; run nbcomm on Linux (on Windows, in WSL 2).")
    if platform != "linux":
        return CheckResult("warn", f"On {platform} nbcomm is not tested; it is made for Linux.")
    return CheckResult("ok", "Ranks are forked from one process that has torch imported.")


def warm_start(
    said: str = os.environ.get(WARM_VARIABLE, ""), none: Callable[[], str] = seed.why_none, stay: float | None = None
) -> CheckResult:
    """Tell whether a second world finds torch imported."""
    if why := none():
        return CheckResult("ok", f"Each world imports torch by itself, because {why}.")
    stay = stay_of(os.environ) if stay is None else stay
    if said and not is_time(said):
        return CheckResult("warn", f"{WARM_VARIABLE}={said} is no time; write for example 90s, 10m or 0. 60 s count.")
    return CheckResult(
        "ok",
        f"The first world imports torch in a process that stays for {stay:g} s after the last world; until it ends, "
        f"worlds start without an import. {WARM_VARIABLE}=10m keeps it longer, {WARM_VARIABLE}=0 turns it off.",
    )


def private_directory(create: Callable[[], WorldDir] = WorldDir.create) -> CheckResult:
    """Check that a world can make its directory, and a Unix socket in it."""
    try:
        home = create()
    except StartError as error:
        return CheckResult("fail", str(error))
    except OSError as error:
        return CheckResult("fail", f"{error}. Set TMPDIR to a directory that you can write to.")
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(home.link_socket))
    except OSError as error:
        where = home.path.parent
        return CheckResult("fail", f"No Unix socket in {where}: {error}. Set TMPDIR to a local disk.")
    else:
        return CheckResult("ok", f"{home.path.parent} is private to you and supports Unix sockets.")
    finally:
        home.remove()


def loopback(
    resolve: Callable[..., list[Any]] = socket.getaddrinfo, listen: Callable[..., socket.socket] = socket.create_server
) -> CheckResult:
    """Check that localhost is this machine, and that a socket can listen on it."""
    try:
        addresses = sorted({str(entry[4][0]) for entry in resolve("localhost", None, socket.AF_INET)})
    except OSError as error:
        return CheckResult("fail", f"localhost has no address ({error}); add '127.0.0.1 localhost' to /etc/hosts.")
    if not all(address.startswith("127.") for address in addresses):
        return CheckResult("fail", f"localhost is {', '.join(addresses)}; it must be 127.0.0.1 in /etc/hosts.")
    try:
        listen(("127.0.0.1", 0)).close()
    except OSError as error:
        return CheckResult("fail", f"Nothing can listen on 127.0.0.1 ({error}); is the loopback interface up?")
    return CheckResult("ok", f"localhost is {', '.join(addresses)}.")


def shared_memory(
    path: Path = Path("/dev/shm"),  # noqa: S108 - a mount point, and only its size is asked for
    usage: Callable[[Path], Any] = shutil.disk_usage,
) -> CheckResult:
    """Check that there is room in the shared memory through which large values pass between processes."""
    try:
        free = usage(path).free
    except OSError:
        return CheckResult("warn", f"{path} does not exist: large values go through the disk.")
    if free < _GB:
        return CheckResult(
            "warn",
            f"{path} has {free // _MB} MB left: larger values take a slower path. In Docker, add --shm-size=2g.",
        )
    return CheckResult("ok", f"{path} has {free / _GB:.1f} GB left.")


def open_files(limits: tuple[int, int] | None = None) -> CheckResult:
    """Check that a process may open as many files and sockets as a world of 64 ranks needs."""
    if limits is None:
        import resource

        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = limits
    # The controller opens the most: about eight sockets for each engine, and its own.
    needed = 8 * _MANY_RANKS + 256
    if 0 <= soft < needed:
        remedy = f"ulimit -n {4096 if hard < 0 else min(hard, 4096)}"
        return CheckResult(
            "warn",
            f"A process may open {soft}; {_MANY_RANKS} ranks need about {needed}. Run {remedy} before Jupyter.",
        )
    return CheckResult("ok", f"A process may open {'any number' if soft < 0 else soft}.")


def encryption(has: Callable[[str], bool] = zmq.has) -> CheckResult:
    """Check that ZMQ has CURVE, with which notebook and ranks authenticate each other."""
    if has("curve"):
        return CheckResult("ok", f"ZMQ {zmq.zmq_version()} has CURVE.")
    return CheckResult("fail", "ZMQ is built without CURVE; install the pyzmq wheel from PyPI.")


# ── the notebook's front end ────────────────────────────────────────────────────────────────────────


def front_end(installed: Callable[[str], str] = importlib.metadata.version) -> CheckResult:
    """Check that JupyterLab or Notebook is installed."""
    here = _versions(("jupyterlab", "notebook"), installed)
    if here:
        return CheckResult("ok", f"{', '.join(here)}.")
    return CheckResult("warn", "No JupyterLab or Notebook in this environment. Run: pip install jupyterlab")


def widgets(installed: Callable[[str], str] = importlib.metadata.version) -> CheckResult:
    """Check that JupyterLab and Notebook can show widgets, such as the panel."""
    here = _versions(("jupyterlab_widgets",), installed)
    if here:
        return CheckResult("ok", f"{here[0]}.")
    return CheckResult("warn", "The panel will show as text only. Run: pip install jupyterlab_widgets")


def _versions(names: tuple[str, ...], installed: Callable[[str], str]) -> list[str]:
    """Return those of the packages that are installed, with their versions."""
    here = []
    for name in names:
        try:
            here.append(f"{name} {installed(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return here


def browser(which: Callable[[str], str | None] = shutil.which) -> CheckResult:
    """Look for a browser; a notebook server's machine needs none."""
    for name in _BROWSERS:
        if path := which(name):
            return CheckResult("ok", f"{path}.")
    return CheckResult("ok", "No browser here, and none is needed: open Jupyter's address from your own machine.")


def slurm(which: Callable[[str], str | None] = shutil.which) -> CheckResult:
    """Tell whether this is a Slurm cluster; none is needed."""
    if path := which("sbatch"):
        return CheckResult("ok", f"{path}.")
    return CheckResult("ok", "No Slurm here, and none is needed on one machine.")
