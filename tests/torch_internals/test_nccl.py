"""What NCCL needs around it, without NCCL."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from nbcomm.torch_internals import nccl, process_groups


class _Backend:
    """One whose abort waits until it is let go."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls = 0
        self.go = threading.Event()
        self._error = error

    def abort(self) -> None:
        self.calls += 1
        self.go.wait(30)
        if self._error is not None:
            raise self._error


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_what_the_user_has_set_is_left_alone_by_either_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_RAS_ADDR", raising=False)
    for name in nccl.SETTINGS:
        for one in (name, name.removeprefix("TORCH_")):
            monkeypatch.delenv(one, raising=False)
    assert nccl.settings() == nccl.SETTINGS
    monkeypatch.setenv("TORCH_NCCL_ENABLE_MONITORING", "1")
    monkeypatch.setenv("NCCL_ASYNC_ERROR_HANDLING", "3")
    left = {"TORCH_NCCL_ENABLE_MONITORING", "TORCH_NCCL_ASYNC_ERROR_HANDLING"}
    assert nccl.settings() == {name: value for name, value in nccl.SETTINGS.items() if name not in left}


def test_who_names_a_port_for_nccls_questions_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_RAS_ENABLE", raising=False)
    assert nccl.settings()["NCCL_RAS_ENABLE"] == "0"
    monkeypatch.setenv("NCCL_RAS_ADDR", "localhost:28029")
    assert "NCCL_RAS_ENABLE" not in nccl.settings()


def test_ranks_that_share_a_gpu_fit_on_it_together(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NCCL_MULTI_RANK_GPU_ENABLE", "NCCL_NVLS_ENABLE", "NCCL_MAX_CTAS"):
        monkeypatch.delenv(name, raising=False)
        assert name not in nccl.settings()
    shared = {name: value for name, value in nccl.settings(2).items() if name not in nccl.SETTINGS}
    assert shared == {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_MAX_CTAS": "2"}
    assert nccl.settings(8)["NCCL_MAX_CTAS"] == "1"
    monkeypatch.setenv("NCCL_MAX_CTAS", "8")
    assert "NCCL_MAX_CTAS" not in nccl.settings(2)


def test_a_group_is_bound_to_its_ranks_gpu() -> None:
    assert nccl.device_of("cuda:3", 0) == torch.device("cuda", 3)
    assert nccl.device_of("cpu", 2) == torch.device("cuda", 2)


def test_aborts_go_on_beside_each_other_and_are_repeated_only_when_they_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nccl, "_AGAIN", 0.0)
    aborts, slow, failing = nccl.Aborts(), _Backend(), _Backend(RuntimeError("it was aborted before"))
    failing.go.set()
    aborts.begin([slow, failing])
    _until(lambda: slow.calls == 1 and failing.calls == 1)
    assert not aborts.wait(0.05)
    _until(lambda: sum(thread.name == "nbcomm-abort" for thread in threading.enumerate()) == 1)
    aborts.begin([slow, failing])
    _until(lambda: failing.calls == 2)
    assert slow.calls == 1
    slow.go.set()
    assert aborts.wait(30)


def test_one_that_has_just_been_aborted_is_left_alone() -> None:
    aborts, backend = nccl.Aborts(), _Backend()
    backend.go.set()
    aborts.begin([backend])
    assert aborts.wait(30)
    aborts.begin([backend])
    assert aborts.wait(30)
    assert backend.calls == 1


@pytest.mark.parametrize("ended", [True, False], ids=["not wanted", "out of time"])
def test_what_is_there_only_when_nobody_waits_for_it_is_undone(ended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_groups, "_LATE", 0.0)
    go, undone = threading.Event(), threading.Event()
    with pytest.raises(dist.DistNetworkError, match="not wanted" if ended else "Timed out"):
        process_groups._unless(lambda: ended, lambda: go.wait(30), 0.05, undone.set)
    assert not undone.is_set()
    go.set()
    assert undone.wait(30)


@pytest.mark.parametrize(("number", "version"), [(23007, "2.30.7"), (22809, "2.28.9")])
def test_the_version_is_that_of_the_library_that_is_there(
    monkeypatch: pytest.MonkeyPatch, number: int, version: str
) -> None:
    def get_version(into: Any) -> int:
        into._obj.value = number
        return 0

    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(ncclGetVersion=get_version))
    assert nccl.version() == version
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace())  # NCCL is a part of torch's library
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 3))
    assert nccl.version() == "2.27.3"
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    assert nccl.version() == ""


def test_what_is_named_is_seen_by_nsight_and_by_torchs_profiler(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=cpu) as profile, nccl.named("all_reduce(float32 (3,), sum)"):
        torch.ones(2).sum()
    assert "all_reduce(float32 (3,), sum)" in {event.key for event in profile.key_averages()}
    seen: list[str] = []
    monkeypatch.setattr(torch.version, "cuda", "12.6")
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", seen.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: seen.append("/"))
    with pytest.raises(KeyError), nccl.named("In [3]"):
        raise KeyError
    assert seen == ["In [3]", "/"]
