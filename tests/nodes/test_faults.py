"""Each fault of docs/reliability.md, on another node: each test of inside_faults.py, run inside and told here."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from ..world.faults import FAULTS, Fault
from . import inside

pytestmark = [inside.WHILE_INSIDE, pytest.mark.nightly]
OF_A_FAULT, *OTHERS = inside.names_in(inside.HERE / "inside_faults.py")
told = inside.told_in("inside_faults.py")


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_on_another_node(told: dict[str, ET.Element], fault: Fault) -> None:
    inside.tell(told, f"{OF_A_FAULT}[{FAULTS.index(fault)}]")


@pytest.mark.parametrize("name", OTHERS)
def test_elsewhere(told: dict[str, ET.Element], name: str) -> None:
    inside.tell(told, name)
