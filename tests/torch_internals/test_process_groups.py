"""Torch's own groups, as the inside of those that are handed out."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from datetime import timedelta
from functools import partial

import pytest
import torch
import torch.distributed as dist

from nbcomm.torch_internals import process_groups
from nbcomm.torch_internals.gloo_sockets import GlooSockets


@pytest.mark.parametrize(
    ("backend", "devices"),
    [("nccl", {"cuda": "nccl"}), ("cpu:gloo,cuda:nccl", {"cpu": "gloo", "cuda": "nccl"})],
)
def test_which_backend_serves_which_device(backend: str, devices: dict[str, str]) -> None:
    assert process_groups.devices_of(backend) == devices


def test_gloo_alone_serves_the_gpu_too_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for available, devices in ((True, {"cpu", "cuda"}), (False, {"cpu"})):
        monkeypatch.setattr(torch.cuda, "is_available", lambda available=available: available)
        assert set(process_groups.devices_of("gloo")) == devices


@pytest.mark.parametrize("at_once", ["0", "1"])
def test_a_member_that_dies_while_gloo_connects_is_not_waited_for_long(
    at_once: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gloo asks the store where each member listens: for one after the other within its time, for all without one."""
    monkeypatch.setattr(process_groups, "_CONNECT", 0.2)
    monkeypatch.setattr(process_groups, "_LATE", 0.2)
    monkeypatch.setenv("GLOO_ENABLE_STORE_V2_API", at_once)
    store, limit = dist.HashStore(), timedelta(seconds=10)
    store.set_timeout(limit)
    store.set("here/1", b"")  # it had come, and connects no more
    began = time.monotonic()
    with pytest.raises(RuntimeError, match=r"[Tt]ime"):
        process_groups.new_inner("gloo", store, 0, 2, limit, GlooSockets(), "g", [0, 1])
    assert time.monotonic() - began < 9
    for thread in threading.enumerate():
        if thread.name == "nbcomm-connect":
            thread.join(30)


def test_a_member_that_gives_up_while_gloo_connects_is_not_waited_for() -> None:
    """An interrupt may end the forming on one rank when all have come, and some are connecting."""
    store, wanted = dist.HashStore(), threading.Event()
    wanted.set()
    store.set("here/1", b"")
    began = time.monotonic()
    threading.Timer(0.3, wanted.clear).start()
    place = "gloo", store, 0, 2, timedelta(seconds=60), GlooSockets(), "g", [0, 1]
    with pytest.raises(dist.DistNetworkError, match="is closed"):
        process_groups.new_inner(*place, lambda: not wanted.is_set())
    assert 0.2 < time.monotonic() - began < process_groups._CONNECT


def test_a_signal_is_heard_while_gloo_connects() -> None:
    store = dist.HashStore()
    store.set("here/1", b"")
    interrupt = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it may come at once
        interrupt.start()
        process_groups.new_inner("gloo", store, 0, 2, timedelta(seconds=60), GlooSockets(), "g", [0, 1])
    assert time.monotonic() - began < process_groups._CONNECT


def test_a_connection_that_fails_keeps_nothing_that_it_was_made_from() -> None:
    class Options:
        """Stands for gloo's, which have threads and a socket."""

    def fails() -> None:
        options = Options()
        kept.append(weakref.ref(options))

        def connect(options: Options) -> None:
            raise ValueError("on purpose")

        with pytest.raises(ValueError, match="on purpose"):
            process_groups._unless(lambda: False, partial(connect, options), 30.0)

    kept: list[weakref.ref[Options]] = []
    gc.disable()
    try:
        fails()
        deadline = time.monotonic() + 30
        while kept[0]() is not None:  # until its thread has ended
            assert time.monotonic() < deadline, gc.get_referrers(kept[0]())
            time.sleep(0.001)
    finally:
        gc.enable()


@pytest.mark.skipif(dist.is_nccl_available(), reason="this torch has NCCL")
def test_a_torch_without_nccl_says_so_in_torchs_words() -> None:
    store, unused = dist.HashStore(), object()
    for backend in ("nccl", "cpu:gloo,cuda:nccl"):
        with pytest.raises(RuntimeError, match=r"^Distributed package doesn't have NCCL built in$"):
            process_groups.new_inner(backend, store, 0, 1, timedelta(seconds=5), unused, "g", [0])  # type: ignore[arg-type]
        assert store.num_keys() == 0, "nobody was told that this rank has come"


def test_only_a_call_for_one_plain_tensor_goes_past_the_dispatcher() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    plain = torch.zeros(2)
    assert process_groups.is_plain([plain])
    others = {
        "gradients": torch.zeros(2, requires_grad=True),
        "a subclass": torch.nn.Parameter(torch.zeros(2), requires_grad=False),
        "sparse": torch.zeros(2).to_sparse(),
        "quantized": torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.qint8),
        "another device": torch.zeros(2, device="meta"),
        "negated on reading": torch.zeros(2, dtype=torch.complex64).conj().imag,
    }
    for name, tensor in others.items():
        assert not process_groups.is_plain([tensor]), name
    assert not process_groups.is_plain([])
    assert not process_groups.is_plain([plain, plain])
    with torch.profiler.profile():
        assert not process_groups.is_plain([plain]), "a profile shows the dispatcher's name of it"
    with TorchDispatchMode():
        assert not process_groups.is_plain([plain]), "a mode sees each call"
