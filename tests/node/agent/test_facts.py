"""What a node offers to ranks."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from nbcomm.node.agent import facts


def test_the_cores_are_those_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 4, 5}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert facts.usable_cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")  # macOS has none
    assert facts.usable_cores() == 8
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert facts.usable_cores() == 1


def test_the_memory_is_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts.psutil, "virtual_memory", lambda: SimpleNamespace(total=9, available=5))
    assert facts.free_memory() == 5
