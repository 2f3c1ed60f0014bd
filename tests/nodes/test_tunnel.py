"""A notebook behind NAT, on fake hosts with real sshds: each test of inside_tunnel.py, run inside and told here."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from . import inside

pytestmark = pytest.mark.timeout(inside.LIMIT + 60)
INSIDE = inside.HERE / "inside_tunnel.py"


@pytest.fixture(scope="module")
def told() -> dict[str, ET.Element]:
    """What each test inside has come to."""
    return inside.told_of(INSIDE)


@pytest.mark.parametrize("name", inside.names_in(INSIDE))
def test_through_ssh_alone(told: dict[str, ET.Element], name: str) -> None:
    inside.tell(told, name)
