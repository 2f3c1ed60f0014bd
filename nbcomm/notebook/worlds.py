"""Which worlds this process steers: the one that the magics use, and the fork server that warms up for it."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..errors import StateError
from ..home import Home
from ..launch.client import ForkServerClient
from ..launch.found import FoundWorld, find_worlds
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


def restart(session: Session, *, progress: Progress = lambda *_: None) -> Session:
    """End a world, and start another like it, which the magics use if they used that one."""
    used = _current is session
    session.stop()
    leave(session)
    made = start(progress=progress, **vars(session.wishes))
    if used:
        use(made)
    return made


def leave(session: Session) -> None:
    """The magics use this world no longer, if they did."""
    if _current is session:
        use(None)


def spawn(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None, nproc_per_node: int | None
) -> list[Any]:
    """Call a function on the ranks that are there, or on others for the while; see `nbcomm.spawn`."""
    here = _current if _current is not None and _current.running else None
    if here is not None and nproc_per_node in (None, len(here.ranks)):
        return here.spawn(function, args, kwargs)
    with start(nproc_per_node) as session:
        return session.spawn(function, args, kwargs)


def attach(identity: str | None = None) -> Session:
    """Take up a world that another notebook of this user has left; see `nbcomm.attach`.

    Raises:
        StateError: there is none, there are several, or another notebook steers it.
    """
    found = find_worlds()
    if identity is not None:
        chosen = [world for world in found if world.home.id == identity]
        if not chosen:
            there = f" There {_are(len(found), 'world')}:\n" + _listed(found) if found else ""
            raise StateError(f"No world {identity!r} lives on this machine.{there}")
    else:
        chosen = [world for world in found if not world.holder]
        if not chosen:
            there = f" Those that live have one:\n{_listed(found)}" if found else ""
            raise StateError(f"No world without a notebook lives on this machine; %distributed start makes one.{there}")
        if len(chosen) > 1:
            raise StateError(f"There {_are(len(chosen), 'world')} to choose from; name one:\n{_listed(chosen)}")
    (world,) = chosen
    if world.holder == os.getpid():
        raise StateError(f"The world {world.home.id} is in use by this very process.")
    if world.holder:
        raise StateError(
            f"The world {world.home.id} is in use by the notebook of process {world.holder}; end that kernel first."
        )
    cool_down()
    return Session(ForkServerClient(world.home, running=True), existing=world.info)


def left_behind() -> list[FoundWorld]:
    """The worlds that a notebook could attach to."""
    return [world for world in find_worlds() if not world.holder]


def _listed(found: Iterable[FoundWorld]) -> str:
    return "\n".join(f"  {world}" for world in found)


def _are(count: int, what: str) -> str:
    return f"is one {what}" if count == 1 else f"are {count} {what}s"


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
