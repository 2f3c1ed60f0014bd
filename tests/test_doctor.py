from __future__ import annotations

import importlib.metadata
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nbcomm import doctor
from nbcomm.errors import CellError, StartError
from nbcomm.torch_build import TorchBuild
from nbcomm.world_dir import WorldDir

GB = 1 << 30


def no_package(name: str) -> str:
    raise importlib.metadata.PackageNotFoundError(name)


def raising(error: Exception) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


def distributed(*, gloo: bool = True, nccl: bool = True) -> Any:
    return SimpleNamespace(is_available=lambda: True, is_gloo_available=lambda: gloo, is_nccl_available=lambda: nccl)


@pytest.mark.world
def test_a_machine_that_runs_these_tests_passes() -> None:
    told = dict(doctor.findings())
    assert len(told) == 20
    assert not {subject: verdict for subject, verdict in told.items() if verdict.level == "fail"}
    assert all(verdict.sentence.endswith((".", "nbcomm")) for verdict in told.values())


def test_a_check_that_trips_is_a_verdict() -> None:
    verdict = doctor._guarded(raising(OSError("no such thing")))
    assert verdict == ("fail", "The check itself failed: OSError: no such thing")


def test_nothing_is_asked_of_a_torch_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = None, doctor.CheckResult("fail", "import torch fails.")
    monkeypatch.setattr(doctor, "load_torch", lambda: broken)
    told = dict(doctor.findings())
    assert told["torch"].level == "fail"
    assert not told.keys() & {"tested", "gloo", "GPUs", "NCCL", "cores, memory", "world"}


# ── Python and its packages ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("version", "level"), [("3.9.18", "fail"), ("3.10.0", "ok"), ("3.13.1", "ok")])
def test_python(version: str, level: str) -> None:
    assert doctor.python(version).level == level


def test_a_missing_and_an_old_package_are_named_with_what_to_run() -> None:
    versions = {"ipykernel": "6.28", "torch": "2.6.0+cpu"}

    def installed(name: str) -> str:
        return versions[name] if name in versions else no_package(name)

    verdict = doctor.packages(["ipykernel>=6.29", "ipyparallel>=9", "torch>=2.6"], installed)
    assert verdict.level == "fail"
    assert verdict.sentence.startswith("Missing or too old: 'ipykernel>=6.29' (here: 6.28), 'ipyparallel>=9'. Run: ")


def test_extras_are_not_asked_for() -> None:
    assert not [line for line in doctor._requirements() if line.startswith("ruff")]
    assert [line for line in doctor._requirements() if line.startswith("torch")]


def test_a_torch_that_does_not_load_is_told_with_its_reason() -> None:
    torch, verdict = doctor.load_torch(raising(OSError("libgomp.so.1: cannot open shared object file")))
    assert torch is None
    assert verdict.level == "fail"
    assert "libgomp.so.1" in verdict.sentence


@pytest.mark.parametrize(("seconds", "level"), [(2.0, "ok"), (40.0, "warn")])
def test_torch_is_timed(seconds: float, level: str) -> None:
    ticks = iter([100.0, 100.0 + seconds])
    _, verdict = doctor.load_torch(lambda _: SimpleNamespace(__version__="2.13.0"), lambda: next(ticks))
    assert verdict.level == level
    assert "torch 2.13.0" in verdict.sentence
    assert f"{seconds:.0f}" in verdict.sentence


# ── torch's backends and devices ────────────────────────────────────────────────────────────────────


def test_a_torch_that_nobody_has_tested_is_told_of() -> None:
    assert doctor.tested("2.13.0+cpu").level == "ok"
    verdict = doctor.tested("99.0.1")
    assert verdict.level == "warn"
    assert "torch 99.0.1 is newer than any that nbcomm was tested with" in verdict.sentence


class FakeWorld:
    """Two ranks that say what they are told to."""

    plain = ""
    how_started = "Warm start: torch was imported before."

    def __init__(self, *found: list[Any], hangs: bool = True) -> None:
        self._found = list(found)
        self._hangs = hangs

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def run(self, code: str, *, quiet: bool) -> None:
        if code == doctor._HANG and self._hangs:
            raise CellError("HangError: barrier #1 of the world can never complete.", {})

    def pull(self, _: str) -> Any:
        return self._found.pop(0)


RIGHT = [true for _, _, true in doctor._TRIAL]


def test_values_and_hangs_of_a_world_are_judged() -> None:
    verdict = doctor.world(lambda: FakeWorld(*RIGHT, *RIGHT))
    assert verdict.level == "ok"
    wrong = doctor.world(lambda: FakeWorld([1, 2]))
    assert wrong.level == "fail"
    assert "a reduction gave [1, 2] instead of [3, 3]. Do not trust" in wrong.sentence
    behind = doctor.world(lambda: FakeWorld(*RIGHT, RIGHT[0], [0, 1]))
    assert behind.level == "fail"
    assert "After an abort" in behind.sentence
    assert doctor.world(lambda: FakeWorld(*RIGHT, hangs=False)).level == "fail"


def test_without_gloo_nothing_runs() -> None:
    assert doctor.gloo(distributed(gloo=False)).level == "fail"
    assert doctor.gloo(distributed()).level == "ok"


def test_a_driver_whose_gpus_torch_does_not_see_is_a_warning() -> None:
    for_gpus = TorchBuild("2.13.0+cu126", "12.6", None, Path())
    verdict = doctor.gpus(0, "/usr/bin/nvidia-smi", lambda: for_gpus)
    assert verdict.level == "warn"
    assert "CUDA_VISIBLE_DEVICES" in verdict.sentence
    verdict = doctor.gpus(0, "/usr/bin/nvidia-smi", lambda: for_gpus._replace(version="2.13.0+cpu", cuda=None))
    assert verdict.level == "warn"
    assert "torch 2.13.0+cpu is a build without GPUs: install a build for your GPU" in verdict.sentence
    assert doctor.gpus(0, None).level == "ok"
    told = doctor.gpus(8, "/usr/bin/nvidia-smi", asked=lambda _: "NVIDIA H200; driver 580.65")
    assert told == ("ok", "torch sees 8 (NVIDIA H200; driver 580.65): a world starts with one rank per GPU.")
    assert doctor.gpus(1, None).sentence == "torch sees 1: a world starts with one rank per GPU."


def test_nccl_matters_only_where_gpus_are() -> None:
    assert doctor.nccl(0, distributed(nccl=False)).level == "ok"
    cuda = SimpleNamespace(can_device_access_peer=lambda _one, other: other != 3)
    told = doctor.nccl(2, distributed(), cuda, lambda: "2.28.9")
    assert told == ("ok", "NCCL 2.28.9 (ProcessGroupNCCL): tensors go from GPU to GPU.")
    newer = doctor.nccl(1, distributed(), cuda, lambda: "2.30.7", lambda: False)
    assert newer.sentence.endswith("With --share several ranks use one GPU, in turns, for MPS does not run.")
    assert "at the same time, by MPS" in doctor.nccl(1, distributed(), cuda, lambda: "2.30.7", lambda: True).sentence
    far = doctor.nccl(8, distributed(), cuda, lambda: "2.28.9")
    assert far.level == "warn"
    assert "GPU 0 reaches GPU 3 only through the host's memory" in far.sentence
    verdict = doctor.nccl(2, distributed(nccl=False))
    assert verdict.level == "warn"
    assert "--backend gloo" in verdict.sentence


@pytest.mark.parametrize(
    ("cores", "memory", "level"),
    [(4, 16 * GB, "ok"), (1, 16 * GB, "warn"), (4, 2 * GB, "warn"), (4, GB // 2, "fail")],
)
def test_room_for_the_ranks(cores: int, memory: int, level: str) -> None:
    assert doctor.room(4, cores, memory).level == level


# ── the system ──────────────────────────────────────────────────────────────────────────────────────


def test_warm_start() -> None:
    assert "because NBCOMM_WARM=0." in doctor.warm_start("0", lambda: "NBCOMM_WARM=0").sentence
    told = doctor.warm_start("10m", lambda: "", 600.0)
    assert told.level == "ok"
    assert "stays for 600 s" in told.sentence
    wrong = doctor.warm_start("soon", lambda: "")
    assert (wrong.level, "NBCOMM_WARM=soon is no time" in wrong.sentence) == ("warn", True)


def test_fork() -> None:
    assert doctor.fork("linux", can_fork=True).level == "ok"
    assert doctor.fork("darwin", can_fork=True).level == "warn"
    assert doctor.fork("win32", can_fork=False).level == "fail"


def test_the_private_directory_is_tried_and_removed(tmp_path: Path) -> None:
    home = WorldDir(tmp_path / "short")
    home.path.mkdir()
    assert doctor.private_directory(lambda: home).level == "ok"
    assert not home.path.exists()


def test_a_directory_that_cannot_be_made_is_told_in_its_own_words() -> None:
    verdict = doctor.private_directory(raising(StartError("It is too long; set TMPDIR to a shorter path.")))
    assert verdict == ("fail", "It is too long; set TMPDIR to a shorter path.")
    verdict = doctor.private_directory(raising(PermissionError(13, "Permission denied")))
    assert verdict == ("fail", "[Errno 13] Permission denied. Set TMPDIR to a directory that you can write to.")


def test_a_directory_without_unix_sockets_is_a_failure(tmp_path: Path) -> None:
    home = WorldDir(tmp_path / ("x" * 120))  # longer than a socket's address may be
    home.path.mkdir()
    verdict = doctor.private_directory(lambda: home)
    assert verdict.level == "fail"
    assert verdict.sentence.startswith(f"No Unix socket in {tmp_path}")
    assert not home.path.exists()


@pytest.mark.parametrize(
    ("resolve", "listen", "words"),
    [
        (raising(socket.gaierror(-2, "Name or service not known")), socket.create_server, "has no address"),
        (lambda *_: [(0, 0, 0, "", ("10.1.2.3", 0))], socket.create_server, "localhost is 10.1.2.3"),
        (lambda *_: [(0, 0, 0, "", ("127.0.0.1", 0))], raising(OSError("unreachable")), "Nothing can listen"),
    ],
)
def test_loopback_fails(resolve: Any, listen: Any, words: str) -> None:
    verdict = doctor.loopback(resolve, listen)
    assert verdict.level == "fail"
    assert words in verdict.sentence


def test_shared_memory() -> None:
    assert doctor.shared_memory(usage=lambda _: SimpleNamespace(free=2 * GB)).level == "ok"
    small = doctor.shared_memory(usage=lambda _: SimpleNamespace(free=64 << 20))
    assert small.level == "warn"
    assert "64 MB" in small.sentence
    assert "--shm-size" in small.sentence
    assert doctor.shared_memory(usage=raising(FileNotFoundError())).level == "warn"


@pytest.mark.parametrize(
    ("limits", "level", "words"),
    [
        ((256, 10240), "warn", "ulimit -n 4096"),
        ((256, 1024), "warn", "ulimit -n 1024"),
        ((256, -1), "warn", "ulimit -n 4096"),
        ((1024, 4096), "ok", "1024"),
        ((-1, -1), "ok", "any number"),
    ],
)
def test_open_files(limits: tuple[int, int], level: str, words: str) -> None:
    verdict = doctor.open_files(limits)
    assert verdict.level == level
    assert words in verdict.sentence


def test_without_curve_nothing_can_be_trusted() -> None:
    assert doctor.encryption(lambda _: False).level == "fail"
    assert doctor.encryption(lambda _: True).level == "ok"


# ── the notebook's front end ────────────────────────────────────────────────────────────────────────


def test_a_missing_front_end_is_a_warning_with_what_to_install() -> None:
    for check in (doctor.front_end, doctor.widgets):
        verdict = check(no_package)
        assert verdict.level == "warn"
        assert "pip install" in verdict.sentence
        assert check(lambda _: "9.9").level == "ok"


def test_what_is_optional_is_never_more_than_ok() -> None:
    for check in (doctor.browser, doctor.slurm):
        assert check(lambda _: None).level == "ok"
        found = check(lambda name: f"/usr/bin/{name}")
        assert found.level == "ok"
        assert found.sentence.startswith("/usr/bin/")


@pytest.mark.outside
def test_the_driver_is_asked_for_names_and_its_version(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H200, 580.65.06'\necho 'NVIDIA H200, 580.65.06'\n")
    program.chmod(0o700)
    assert doctor._ask_driver(str(program)) == "NVIDIA H200; driver 580.65.06"
    program.write_text("#!/bin/sh\necho failed; exit 9\n")
    assert doctor._ask_driver(str(program)) == ""
    assert doctor._ask_driver(str(tmp_path / "none")) == ""


def test_mps_runs_where_its_pipe_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert not doctor._mps_runs()
    (tmp_path / "control").touch()
    assert doctor._mps_runs()
