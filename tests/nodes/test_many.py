"""64 ranks on four fake hosts: each test of inside_many.py, run inside and told here."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from . import inside

pytestmark = pytest.mark.timeout(inside.LIMIT + 60)
INSIDE = inside.HERE / "inside_many.py"


@pytest.fixture(scope="module")
def told() -> dict[str, ET.Element]:
    """What each test inside has come to."""
    return inside.told_of(INSIDE, hosts="a b c d")


@pytest.mark.parametrize("name", inside.names_in(INSIDE))
def test_with_64_ranks(told: dict[str, ET.Element], name: str) -> None:
    inside.tell(told, name)
