"""When a machine that does not answer may be declared dead: when nothing of the world can live there any more.

A network that is cut looks like a machine that is dead, and comes back. Ranks that go on there, while others take their
places, would write the same files. So they are ended first, by the launcher that has started the node; where that is
cut, too, the node's own lease has ended them before anybody says that they are dead.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .launchers.daemon import Daemon

_FENCE = 15.0
"""Seconds that a machine has to end what is left there."""

_MARGIN = 10.0
"""Seconds by which its lease may begin later than the silence: its daemon has to notice that, too."""

_LOOK = 0.25


def await_end(
    server: Daemon, heard: Callable[[], float], lease: float, over: Callable[[], bool] = lambda: False
) -> bool:
    """Wait until nothing of the world lives on a node that does not answer.

    Args:
        server: the node's.
        heard: returns when its daemon was heard last, by `time.monotonic`.
        lease: seconds that the node lives without a notebook.
        over: whether nobody wants to know any more.

    Returns:
        False if the node has spoken again meanwhile, for then it lives; or it is over.
    """
    silent_since = heard()
    with suppress(Exception):  # mostly: ssh cannot reach it, either
        server.fence(_FENCE)
        return True
    while time.monotonic() < silent_since + lease + _MARGIN:
        if over() or heard() > silent_since:
            return False
        time.sleep(_LOOK)
    return True
