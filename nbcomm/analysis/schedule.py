"""A pipeline's schedule, from the messages of its stages: each rank works between them.

What came from a lower rank is an activation, and what goes to one a gradient. So work after a message from below, or
before one to above, is forward; after one from above, or before one to below, it is backward.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..protocol import CallRecord

FORWARD, BACKWARD, BOTH = "forward", "backward", "forward and backward"
KINDS = (FORWARD, BACKWARD, BOTH)
"""Work of a stage; the last stage does both at once if nothing comes between them."""

_SHORT = 0.05
"""Work that is shorter than this part of the longest is what lies between two messages, and no work of a stage."""

_AT_ONCE = 0.001
"""Seconds between a call and the wait for it, if it is one call for its user."""


class Stretch(NamedTuple):
    """A piece of a row along the time: of a stage, its work.

    Attributes:
        kind: of work, one of `KINDS`.
        start: when it began, in seconds.
        end: when it ended.
        text: which one of its kind, from 0: "F3", "B0", or "F3 B0".
    """

    kind: str
    start: float
    end: float
    text: str


class _Event(NamedTuple):
    """Messages end and begin work; other calls only end it."""

    at: float
    until: float
    after: str
    before: str


def schedule(
    steps: Mapping[int, Sequence[CallRecord]], windows: Mapping[int, tuple[float, float]]
) -> dict[int, list[Stretch]]:
    """Return the work of each rank, in order.

    Args:
        steps: the ranks' calls.
        windows: when each rank's part of the cell began and ended.
    """
    found = {rank: _pieces(rank, steps.get(rank, ()), window) for rank, window in sorted(windows.items())}
    longest = max((end - start for own in found.values() for _, start, end in own), default=0.0)
    return {
        rank: _numbered([each for each in own if each[2] - each[1] >= _SHORT * longest]) for rank, own in found.items()
    }


def idle(works: Mapping[int, Sequence[Stretch]]) -> float:
    """Return the part of the ranks' time in which they did no work, from the first piece to the last: the bubble."""
    every = [each for own in works.values() for each in own]
    whole = (max(each.end for each in every) - min(each.start for each in every)) * len(works) if every else 0.0
    return 1 - sum(each.end - each.start for each in every) / whole if whole > 0 else 0.0


def expected(stages: int, micro: int) -> float:
    """Return the bubble of GPipe and 1F1B: (p - 1) / (m + p - 1) (Huang et al. 2019, arxiv.org/abs/1811.06965).

    >>> expected(4, 4)
    0.42857142857142855
    """
    return (stages - 1) / (micro + stages - 1)


def _pieces(rank: int, steps: Sequence[CallRecord], window: tuple[float, float]) -> list[tuple[str, float, float]]:
    end = _Event(window[1], window[1], "", "")
    events = [*sorted(filter(None, (_event(rank, step) for step in steps)), key=lambda event: event.at), end]
    pieces = []
    began, after = window[0], ""
    for event, following in zip(events, [*events[1:], end], strict=True):
        kinds = {after, event.before} - {""}
        if kinds and event.at > began:
            pieces.append((BOTH if len(kinds) > 1 else kinds.pop(), began, event.at))
        # Who makes another call does not wait in this one.
        until = event.until if event.until <= following.at else event.at
        if until >= began:
            began, after = until, event.after
    return pieces


def _event(rank: int, step: CallRecord) -> _Event | None:
    asked = step.asked or step.began
    ended = step.ended or step.began
    if step.kind == "send" and step.peer is not None:  # its data is there when it begins, whoever waits for it later
        until = ended if asked - step.began < _AT_ONCE else step.began
        return _Event(step.began, until, "", FORWARD if step.peer > rank else BACKWARD)
    if asked == math.inf:
        return None  # nobody has waited for it
    if step.kind == "recv" and step.peer is not None:
        return _Event(asked, max(asked, ended), FORWARD if step.peer < rank else BACKWARD, "")
    return _Event(asked, max(asked, ended), "", "")


def _numbered(pieces: Sequence[tuple[str, float, float]]) -> list[Stretch]:
    counts = {FORWARD: 0, BACKWARD: 0}
    works = []
    for kind, start, end in pieces:
        does = [FORWARD, BACKWARD] if kind == BOTH else [kind]
        works.append(Stretch(kind, start, end, " ".join(f"{each[0].upper()}{counts[each]}" for each in does)))
        for each in does:
            counts[each] += 1
    return works
