"""The panel of a world on two fake hosts, in a browser: each test of inside_hosts.py, run inside and told here."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from . import inside

pytestmark = [inside.WHILE_INSIDE, pytest.mark.nightly]
FILE = "../browser/inside_hosts.py"
told = inside.told_in(FILE)


@inside.each_of(FILE)
def test_in_a_browser(told: dict[str, ET.Element], name: str) -> None:
    inside.tell(told, name)
