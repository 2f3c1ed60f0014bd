"""What is known of remote nodes before they join."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..world_info import Launcher
from .launchers.shared_launcher import SharedLauncher


class RemoteNodes(NamedTuple):
    """The nodes that join.

    Attributes:
        launchers: how each is started.
        counts: the number of ranks of each node; the first one is the notebook's machine.
        address: of the notebook's machine, where the others reach it.
        shared_launcher: starts all of them at once; None if each is started alone.
        tunnelled: ssh leads them to the address, which they cannot reach.
    """

    launchers: Sequence[Launcher]
    counts: Sequence[int]
    address: str
    shared_launcher: SharedLauncher | None = None
    tunnelled: bool = False
