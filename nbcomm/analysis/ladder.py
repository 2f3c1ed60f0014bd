"""The sequence ladder: each rank's state in the last collectives of a group. A hang is one ○ beside ◐."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..rank_spec import named
from .matching import MatchedCall
from .story import Ladder, Rung

_RUNGS = 12


def ladder(size: int, met: Sequence[MatchedCall], *, ended: bool) -> Ladder:
    """Make the ladder of the group in which a rank waits, else of the group used last.

    Args:
        size: the world's size.
        met: the cell's matched calls.
        ended: whether the cell has ended, so that no rank waits any longer.
    """
    collectives = [matched for matched in met if matched.name not in ("send", "sendrecv")]
    if not collectives:
        return Ladder()
    waiting = [matched for matched in collectives if matched.missing]
    group = (waiting or collectives)[-1].group
    own = sorted((matched for matched in collectives if matched.group == group), key=lambda matched: matched.seq)
    reached: dict[int, int] = {}
    for matched in own:
        for rank in matched.steps:
            reached[rank] = max(matched.seq, reached.get(rank, 0))
    members = own[-1].members
    rungs = tuple(
        Rung(
            matched.number,
            matched.name,
            matched.line,
            _marks(size, matched, reached, ended=ended),
        )
        for matched in own[-_RUNGS:]
    )
    return Ladder("world" if len(members) == size else named(members), rungs)


def _marks(size: int, matched: MatchedCall, reached: Mapping[int, int], *, ended: bool) -> tuple[str, ...]:
    members = frozenset(matched.members)
    return tuple(
        _mark(rank, matched, reached.get(rank, 0), ended=ended) if rank in members else "out" for rank in range(size)
    )


def _mark(rank: int, matched: MatchedCall, reached: int, *, ended: bool) -> str:
    step = matched.steps.get(rank)
    if step is None:
        return "done" if reached > matched.seq else "missing"  # old steps are no longer reported
    if step.name != matched.name:
        return "other"
    if step.failed:
        return "failed" if ended else "arrived"
    return "done" if step.ended or (ended and not matched.missing) else "arrived"
