"""Worlds that a real Open MPI starts, on fake hosts: each test of inside_mpi.py, run inside and told here."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from . import inside

pytestmark = pytest.mark.timeout(inside.LIMIT + 60)
INSIDE = inside.HERE / "inside_mpi.py"


@pytest.fixture(scope="module")
def told() -> dict[str, ET.Element]:
    """What each test inside has come to."""
    return inside.told_of(INSIDE, "mpi")


@pytest.mark.parametrize("name", inside.names_in(INSIDE))
def test_by_mpi(told: dict[str, ET.Element], name: str) -> None:
    inside.tell(told, name)
