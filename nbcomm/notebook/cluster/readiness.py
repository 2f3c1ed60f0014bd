"""The wait until new processes can run cells, and the reason if one cannot."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable

from ...errors import Interrupted, StartError
from ...rank_spec import capital, ends_of, named, together
from .rank_table import RankTable

_TICK = 0.1

_MOMENT = 0.5
"""Seconds in which it is told of all ranks that died together: of each death there is a message of its own."""


def await_ranks(  # noqa: PLR0913 - the last three by keyword
    rank_table: RankTable,
    ranks: Collection[int],
    deadline: float,
    limit: str,
    *,
    progress: Callable[[int], None] = lambda _: None,
    given_up: Callable[[], bool] = lambda: False,
    look: Callable[[], None] = lambda: None,
) -> None:
    """Wait until the engines of these ranks can run cells.

    Args:
        rank_table: the link fills it in as they report.
        ranks: the ranks to wait for.
        deadline: the end of the wait, by `time.monotonic`.
        limit: the time in words, for the message.
        progress: called with the number of ready ranks.
        given_up: whether they are no longer wanted.
        look: notices if nobody is there who would report a death.

    Raises:
        Interrupted: they were given up.
        StartError: engines died, or the time is over; the message ends with their logs.
    """
    shown = -1
    missing = set(ranks)
    while missing := missing - rank_table.attached:
        look()
        refuse_dead(rank_table, ranks)
        if given_up():
            raise Interrupted
        if time.monotonic() > deadline:
            late = sorted(missing)
            raise StartError(
                f"{capital(named(late))} did not start within {limit}. "
                f"The log of rank {late[0]} ends:\n{rank_table.log(late[0])}"
            )
        if len(ranks) - len(missing) != shown:
            shown = len(ranks) - len(missing)
            progress(shown)
        rank_table.wait(_TICK)


def refuse_dead(rank_table: RankTable, ranks: Iterable[int]) -> None:
    """Raise if any of these ranks are dead.

    Raises:
        StartError: some are, each with its own cause; the message ends with a log for each cause.
    """
    if not rank_table.dead:
        return
    ranks = list(ranks)
    if not rank_table.dead_among(ranks):
        return
    until = time.monotonic() + _MOMENT
    while len(rank_table.dead_among(ranks)) < len(ranks) and time.monotonic() < until:
        rank_table.wait(_TICK)
    dead = rank_table.dead_among(ranks)
    alike = together(dead, [rank_table.dead[rank] for rank in dead])
    logs = [f"The log of rank {who[0]} ends:\n{rank_table.log(who[0])}" for who in alike.values()]
    if len(dead) == 1:
        logs = [f"Its log ends:\n{rank_table.log(dead[0])}"]
    they = "they" if len(dead) > 1 else "it"
    raise StartError(f"{capital(ends_of(dead, rank_table.dead))} while {they} started. " + "\n".join(logs))
