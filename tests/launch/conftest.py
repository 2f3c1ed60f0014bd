"""Clients of nodes, real and played."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..node.served import Served, quickly
from .scripted import Scripted


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Served]:
    """A real node."""
    quickly(monkeypatch, tmp_path)
    made = Served()
    yield made
    made.close()


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    made = Scripted()
    yield made
    made.close()
