"""Worlds over ssh, on fake hosts with real sshds: each test of inside_ssh.py, run inside and told here.

What breaks there is in test_faults.py.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET

from . import inside

pytestmark = inside.WHILE_INSIDE
told = inside.told_in("inside_ssh.py")


@inside.each_of("inside_ssh.py")
def test_over_ssh(told: dict[str, ET.Element], name: str) -> None:
    inside.tell(told, name)
