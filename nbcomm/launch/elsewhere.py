"""What is known of nodes before they join."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..world_info import Way
from .ways.together import Together


class Elsewhere(NamedTuple):
    """The nodes that join.

    Attributes:
        ways: how each is started.
        counts: the number of ranks of each node; the first one is the notebook's machine.
        address: of the notebook's machine, where the others reach it.
        together: starts all of them at once; None if each is started alone.
        tunnelled: ssh leads them to the address, which they cannot reach.
    """

    ways: Sequence[Way]
    counts: Sequence[int]
    address: str
    together: Together | None = None
    tunnelled: bool = False
