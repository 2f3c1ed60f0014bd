"""The actions of the panel's buttons for the ranks, and their messages; `registry` has those that end a world."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...launch.working_folder import said_of_missing
from ...rank_spec import capital, named
from ..cluster import GROUPS

if TYPE_CHECKING:
    from .session import Session


def interrupt(session: Session) -> str:
    """End the running cell."""
    busy = session.busy
    session.interrupt()
    return "The running cell was interrupted." if busy else "No cell is running, so there was nothing to interrupt."


def heal(session: Session, ranks: str | None = None) -> str:
    """Replace the processes of dead ranks, or of these."""
    began = time.monotonic()
    replaced = session.heal(ranks)
    living = [view.rank for view in session.views() if view.state != "dead"]
    healed = in_words(replaced, time.monotonic() - began, session.ranks, living)
    moved = said_of_missing(session.home) if replaced else ""
    return "\n".join([healed, *filter(None, [moved]), *session.troubles])


def in_words(healed: Sequence[str], seconds: float, world: Sequence[int], living: Sequence[int]) -> str:
    """Describe what was healed in a world of these ranks, of which these live.

    >>> in_words(["rank 1"], 0.21, [0, 1, 2], [0, 1, 2])
    'Rank 1 is back after 0.2 s, without variables; the others kept theirs.'
    >>> in_words(["rank 0", "rank 1"], 0.21, [0, 1], [0, 1])
    'Ranks 0-1 are back after 0.2 s, without variables.'
    """
    if not healed:
        return "All processes are alive, so there was nothing to heal."
    if healed == [GROUPS]:
        return "All processes are alive. Their process groups were formed again, and all variables are kept."
    ranks = [int(word.removeprefix("rank ")) for word in healed if word.startswith("rank ")]
    others = [word for word in healed if not word.startswith("rank ")]
    text = " and ".join([*others, *([named(ranks)] if ranks else [])])
    kept = sorted(set(living) - set(ranks))
    who = "the others" if len(kept) > 1 and len(kept) + len(ranks) == len(world) else named(kept)
    theirs = f"; {who} kept {'theirs' if len(kept) > 1 else 'its own'}" if kept else ""
    without = f", without variables{theirs}" if ranks else ""
    are = "is" if len(healed) == 1 else "are"
    return f"{capital(text)} {are} back after {seconds:.1f} s{without}."
