"""A notebook behind NAT, on fake hosts with real sshds: each test of inside_tunnel.py, run inside and told here."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from . import inside

pytestmark = inside.WHILE_INSIDE
told = inside.told_in("inside_tunnel.py")


@inside.each_of("inside_tunnel.py")
def test_through_ssh_alone(told: dict[str, ET.Element], name: str) -> None:
    inside.tell(told, name)
