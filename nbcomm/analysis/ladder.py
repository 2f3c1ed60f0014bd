"""The sequence ladder: each rank's state in the last collectives of a group. A hang is one ○ beside ◐."""

from __future__ import annotations

from collections.abc import Sequence

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
    collectives = [meeting for meeting in met if meeting.name not in ("send", "sendrecv")]
    if not collectives:
        return Ladder()
    waiting = [meeting for meeting in collectives if meeting.missing]
    group = (waiting or collectives)[-1].group
    own = sorted((meeting for meeting in collectives if meeting.group == group), key=lambda meeting: meeting.seq)
    reached: dict[int, int] = {}
    for meeting in own:
        for rank in meeting.steps:
            reached[rank] = max(meeting.seq, reached.get(rank, 0))
    members = own[-1].members
    rungs = tuple(
        Rung(
            meeting.seq,
            meeting.name,
            meeting.line,
            tuple(_mark(rank, meeting, reached.get(rank, 0), ended=ended) for rank in range(size)),
        )
        for meeting in own[-_RUNGS:]
    )
    return Ladder("world" if len(members) == size else named(members), rungs)


def _mark(rank: int, meeting: MatchedCall, reached: int, *, ended: bool) -> str:
    if rank not in meeting.members:
        return "out"
    step = meeting.steps.get(rank)
    if step is None:
        return "done" if reached > meeting.seq else "missing"  # old steps are no longer reported
    if step.name != meeting.name:
        return "other"
    if step.failed:
        return "failed" if ended else "arrived"
    return "done" if step.ended or (ended and not meeting.missing) else "arrived"
