"""64 ranks on four fake hosts: each test of inside_many.py, run inside and told here."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from . import inside

pytestmark = [inside.WHILE_INSIDE, pytest.mark.nightly]
told = inside.told_in("inside_many.py", hosts="a b c d")


@inside.each_of("inside_many.py")
def test_with_64_ranks(told: dict[str, ET.Element], name: str) -> None:
    inside.tell(told, name)
