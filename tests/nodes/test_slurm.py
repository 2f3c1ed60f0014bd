"""Worlds in jobs of a real Slurm, on fake hosts: each test of inside_slurm.py, run inside and told here."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from . import inside

pytestmark = inside.WHILE_INSIDE
told = inside.told_in("inside_slurm.py", "slurm")


@inside.each_of("inside_slurm.py")
def test_in_a_job(told: dict[str, ET.Element], name: str) -> None:
    inside.tell(told, name)
