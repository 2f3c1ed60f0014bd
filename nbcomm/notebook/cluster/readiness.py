"""Waits until new processes can run cells, and says why one cannot."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable

from ...errors import Interrupted, StartError
from ...rank_spec import capital, named
from .roster import Roster

_TICK = 0.1


def await_ranks(  # noqa: PLR0913 - the last two by keyword
    roster: Roster,
    ranks: Collection[int],
    deadline: float,
    limit: str,
    *,
    progress: Callable[[int], None] = lambda _: None,
    given_up: Callable[[], bool] = lambda: False,
) -> None:
    """Wait until the engines of these ranks can run cells.

    Args:
        roster: is filled in by the link as they report.
        ranks: whom to wait for.
        deadline: until when, by `time.monotonic`.
        limit: the time in words, for the message.
        progress: told how many are ready.
        given_up: whether nobody wants them any more.

    Raises:
        Interrupted: they were given up.
        StartError: an engine died, or the time is over; the message ends with its log.
    """
    shown = -1
    while missing := sorted(set(ranks) - roster.attached):
        refuse_dead(roster, ranks)
        if given_up():
            raise Interrupted
        if time.monotonic() > deadline:
            raise StartError(
                f"{capital(named(missing))} did not start within {limit}. "
                f"The log of rank {missing[0]} ends:\n{roster.log(missing[0])}"
            )
        if len(ranks) - len(missing) != shown:
            shown = len(ranks) - len(missing)
            progress(shown)
        roster.wait(_TICK)


def refuse_dead(roster: Roster, ranks: Iterable[int]) -> None:
    """Raise if one of these ranks is dead.

    Raises:
        StartError: one is; the message ends with its log.
    """
    for rank in roster.dead_among(ranks):
        raise StartError(f"Rank {rank} {roster.dead[rank]} while it started. Its log ends:\n{roster.log(rank)}")
