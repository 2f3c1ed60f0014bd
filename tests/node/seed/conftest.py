"""Callers of seeds that only one test, or one file of tests, has."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .callers import Callers, callers_in


@pytest.fixture
def callers() -> Iterator[Callers]:
    with tempfile.TemporaryDirectory() as folder, callers_in(Path(folder)) as made:
        yield made


@pytest.fixture(scope="module")
def shared() -> Iterator[Callers]:
    with tempfile.TemporaryDirectory() as folder, callers_in(Path(folder)) as made:
        yield made
