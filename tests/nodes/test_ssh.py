"""Worlds over ssh, on fake hosts with real sshds: each test of inside_ssh.py, run inside and told here.

What breaks there is in test_faults.py.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from . import inside

pytestmark = pytest.mark.timeout(inside.LIMIT + 60)
INSIDE = inside.HERE / "inside_ssh.py"


@pytest.fixture(scope="module")
def told() -> dict[str, ET.Element]:
    """What each test inside has come to."""
    return inside.told_of(INSIDE)


@pytest.mark.parametrize("name", inside.names_in(INSIDE))
def test_over_ssh(told: dict[str, ET.Element], name: str) -> None:
    inside.tell(told, name)
