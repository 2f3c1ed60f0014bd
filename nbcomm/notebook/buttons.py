"""What the panel's buttons do, and what they say afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..errors import StateError
from ..launch.folders import said_of_missing
from ..ranks import capital, named

if TYPE_CHECKING:
    from .session import Session


def actions(session: Session) -> dict[str, Callable[[], str]]:
    """Each button's function: it runs on the kernel's main thread and returns a sentence."""
    return {
        "interrupt": lambda: interrupt(session),
        "heal": lambda: heal(session),
        "stop": lambda: stop(session),
        "restart": lambda: restart(session),
    }


def useful(*, busy: bool, hurt: bool) -> list[str]:
    """The buttons that would change something now.

    Args:
        busy: something is under way: a request, a heal.
        hurt: a rank is dead, or another of the world's processes, which a heal mends too.
    """
    return [*(["interrupt"] if busy else []), *(["heal"] if hurt else []), "stop", "restart"]


def interrupt(session: Session) -> str:
    """End the running cell."""
    busy = session.busy
    session.interrupt()
    return "The running cell was told to end." if busy else "No cell runs, so there was nothing to interrupt."


def heal(session: Session, ranks: str | None = None) -> str:
    """Put new processes in the places of dead ranks, or of these."""
    began = time.monotonic()
    replaced = session.heal(ranks)
    healed = in_words(replaced, time.monotonic() - began)
    moved = said_of_missing(session.home) if replaced else ""
    return "\n".join([healed, *filter(None, [moved]), *session.troubles])


def stop(session: Session) -> str:
    """End the world."""
    from . import worlds

    if not session.running:
        raise StateError("This world is stopped; start one with %distributed start.")
    session.stop()
    worlds.leave(session)
    return f"Stopped {session.title}."


def restart(session: Session) -> str:
    """End the world and start another like it, whose panel takes the places of this one's."""
    from . import worlds

    began, old = time.monotonic(), session.panel
    made = worlds.restart(session)
    if made.panel is not None and old is not None:
        made.panel.replace(old)
    return f"{made.title}, {made.backend}, ready in {time.monotonic() - began:.1f} s; the variables of before are lost."


def in_words(healed: Sequence[str], seconds: float) -> str:
    """Say what was healed."""
    if not healed:
        return "Everything is alive; there is nothing to heal."
    ranks = [int(word.removeprefix("rank ")) for word in healed if word.startswith("rank ")]
    others = [word for word in healed if not word.startswith("rank ")]
    text = " and ".join([*others, *([named(ranks)] if ranks else [])])
    without = ", without variables; the others kept theirs" if ranks else ""
    are = "is" if len(healed) == 1 else "are"
    return f"{capital(text)} {are} back after {seconds:.1f} s{without}."
