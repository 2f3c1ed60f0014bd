"""What DTensor has cached of a mesh is forgotten with its groups; without DTensor nothing is imported for that."""

from __future__ import annotations

import functools
import subprocess
import sys

import pytest
import torch.distributed.tensor._redistribute as redistribute
from torch.distributed.tensor import DTensor

from nbcomm.torch_internals.dtensor import forget_meshes


def test_all_caches_are_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    cached = functools.lru_cache(lambda mesh: mesh)
    monkeypatch.setattr(redistribute, "_by_mesh", cached, raising=False)
    monkeypatch.setattr(redistribute, "_planner_cache", {"a mesh": "its planner"}, raising=False)
    cached("a mesh")
    forget_meshes()
    assert not redistribute._planner_cache
    assert cached.cache_info().currsize == 0
    propagator = DTensor._op_dispatcher.sharding_propagator  # type: ignore[attr-defined]
    assert propagator.propagate_op_sharding.cache.cache_info().currsize == 0


def test_without_dtensor_nothing_is_imported() -> None:
    code = """
import sys
from nbcomm.torch_internals.dtensor import forget_meshes
before = {*sys.modules}
forget_meshes()
assert "torch.distributed.tensor" not in sys.modules
assert {*sys.modules} == before
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
