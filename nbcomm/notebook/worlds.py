"""Which worlds this process steers: the one that the magics use, and the fork server that warms up for it."""

from __future__ import annotations

import atexit
from typing import Any

from ..errors import StateError
from ..home import Home
from ..launch.client import ForkServerClient
from .session import Session
from .startup import Progress, Wishes

# ruff: noqa: PLW0603 - one process steers one world by magics: this module is that fact
_warm: ForkServerClient | None = None
_current: Session | None = None


def warm_up() -> None:
    """Start the fork server that the next world will use, so that its imports run while a person still types."""
    global _warm
    if _warm is None:
        _warm = ForkServerClient(Home.create())
        atexit.register(cool_down)


def cool_down() -> None:
    """End a fork server that no world took."""
    global _warm
    if _warm is not None:
        _warm.shutdown()
        _warm = None
        atexit.unregister(cool_down)


def start(n: int | None = None, *, progress: Progress = lambda *_: None, **wishes: Any) -> Session:
    """Start a world of its own, from the warm fork server if there is one; see `startup.Wishes`."""
    global _warm
    forkserver, _warm = _warm or ForkServerClient(Home.create()), None
    atexit.unregister(cool_down)
    return Session(forkserver, Wishes(n, **wishes), progress)


def current() -> Session:
    """Return the world that the magics use.

    Raises:
        StateError: there is none.
    """
    if _current is None or not _current.running:
        raise StateError("No world is running; start one with %distributed start, or run a %%distributed cell.")
    return _current


def use(session: Session | None) -> None:
    """Let the magics use this world."""
    global _current
    _current = session
