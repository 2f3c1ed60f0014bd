"""What is asked of a world before one is started."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NoReturn

import pytest

from nbcomm import torch_build
from nbcomm.errors import StartError
from nbcomm.launch.capacity import Machine
from nbcomm.notebook.cluster.start_options import StartOptions
from nbcomm.notebook.session import registry
from nbcomm.protocol import Claim
from nbcomm.protocol.codec import decode_order, encode
from nbcomm.torch_build import TorchBuild


def test_a_world_may_live_for_ever_which_is_a_long_time() -> None:
    sound = registry._sound(StartOptions(grace=math.inf, timeout=math.inf))
    assert sound.timeout < math.inf
    claim = decode_order(encode(Claim(1, 2, sound.grace)))
    assert isinstance(claim, Claim)
    assert claim.lease > 1e6


def test_nothing_is_prepared_for_times_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_prepared", lambda: pytest.fail("it was"))
    for options in ({"grace": math.nan}, {"grace": -1.0}, {"timeout": 0.0}, {"timeout": math.nan}):
        with pytest.raises(StartError, match="must be a number of seconds"):
            registry.start(2, **options)


@pytest.mark.parametrize(
    ("n", "options", "said"),
    [
        (100_000, {}, "^100000 ranks do not fit into this machine: "),
        (2, {"backend": "nccl"}, "^--backend nccl needs GPUs, but torch 2.13.0.cpu is a build without GPUs"),
        (2, {"device": "cuda"}, "^--device cuda needs a GPU, but torch 2.13.0.cpu is a build without GPUs"),
        (2, {"backend": "xyz"}, "^torch 2.13.0.cpu has no backend 'xyz'"),
        (2, {"backend": "cpu:gloo,", "engines": "ssh", "hosts": "a:2"}, "^The backend 'cpu:gloo,' is malformed"),
        (2, {"oversubscribe": True, "engines": "ssh", "hosts": "a:2"}, "^--oversubscribe is about this machine"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_prepared(
    monkeypatch: pytest.MonkeyPatch, n: int, options: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr(torch_build, "installed", lambda: TorchBuild("2.13.0+cpu", None, None, Path()))
    monkeypatch.setattr(registry, "_prepared", lambda: pytest.fail("it was"))
    with pytest.raises(StartError, match=said):
        registry.start(n, **options)


@pytest.mark.parametrize(
    ("n", "options"),
    [
        (100_000, {"oversubscribe": True}),
        (64, {}),
        (None, {}),
        (2, {"backend": "gloo"}),
        (2, {"backend": "nccl", "engines": "ssh", "hosts": "a:2", "address": "10.0.0.1"}),  # what it has is not known
    ],
)
def test_what_may_work_is_tried(monkeypatch: pytest.MonkeyPatch, n: int | None, options: dict[str, Any]) -> None:
    monkeypatch.setattr(torch_build, "installed", lambda: TorchBuild("2.13.0+cpu", None, None, Path()))
    monkeypatch.setattr(Machine, "here", lambda _: Machine(2, 22 << 30))

    def tried() -> NoReturn:
        raise LookupError

    monkeypatch.setattr(registry, "_prepared", tried)
    with pytest.raises(LookupError):
        registry.start(n, **options)
