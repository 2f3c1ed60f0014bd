"""Worlds that a real Open MPI starts, on fake hosts: each test of inside_mpi.py, run inside and told here."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from . import inside

pytestmark = inside.WHILE_INSIDE
told = inside.told_in("inside_mpi.py", "mpi")


@inside.each_of("inside_mpi.py")
def test_by_mpi(told: dict[str, ET.Element], name: str) -> None:
    inside.tell(told, name)
