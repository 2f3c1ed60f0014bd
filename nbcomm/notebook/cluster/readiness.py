"""The wait until new processes can run cells, and the reason if one cannot."""

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
        roster: the link fills it in as they report.
        ranks: the ranks to wait for.
        deadline: the end of the wait, by `time.monotonic`.
        limit: the time in words, for the message.
        progress: called with the number of ready ranks.
        given_up: whether they are no longer wanted.

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
