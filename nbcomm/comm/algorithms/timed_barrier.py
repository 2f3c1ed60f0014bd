"""A barrier with a timeout."""

from __future__ import annotations

import re
from datetime import timedelta

import torch.distributed as dist

from ...errors import CollectiveError
from ...rank_spec import named
from ..transport.exchange import GroupChannel

_EVER = timedelta(days=3650)
"""The timeout from which there is no limit: gloo counts in nanoseconds, and can hold little more."""


def limit_of(timeout: float | timedelta | None) -> timedelta | None:
    """Return a barrier's timeout as a timedelta; None for no limit.

    Raises:
        CollectiveError: the timeout is not a positive time.
    """
    if timeout is None:
        return None
    if not isinstance(timeout, timedelta):
        if timeout >= _EVER.total_seconds():
            return None
        if not timeout > 0:  # excludes NaN, too
            raise CollectiveError(f"A barrier needs a positive timeout, in seconds, not {timeout!r}.")
        timeout = timedelta(seconds=timeout)
    if timeout <= timedelta(0):
        raise CollectiveError(f"A barrier needs a positive timeout, in seconds, not {timeout!r}.")
    return None if timeout >= _EVER else timeout


def barrier_with_timeout(channel: GroupChannel, name: str | None, limit: timedelta) -> None:
    """Wait for every rank of the group, for ``limit`` at most.

    The group's first rank counts the arrivals, so only it can name the missing ranks.

    Raises:
        CollectiveError: not all ranks have arrived in time.
    """
    try:
        if channel.host.type == "cpu":
            dist.monitored_barrier(channel.group, limit, wait_all_ranks=True)
        else:
            work = dist.barrier(group=channel.group, async_op=True)
            if work is not None:
                work.wait(limit)
    except RuntimeError as error:
        missing = re.search(r"Ranks ([\d, ]+) failed", str(error))
        if missing:
            absent = [channel.ranks[int(number)] for number in missing[1].replace(",", " ").split()]
            found = f"{named(absent)} did not arrive"
        elif channel.me == 0:
            found = "not all ranks arrived"
        else:
            found = f"rank {channel.ranks[0]}, which counts the others, did not report that all ranks had arrived"
        label = "The barrier" if name is None else f"The barrier {name!r}"
        raise CollectiveError(
            f"{label} of {named(channel.ranks)} timed out after {limit.total_seconds():g} s: {found}."
        ) from error
