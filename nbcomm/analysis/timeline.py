"""How ranks spent a cell's time: own work, waiting for others, and moving data after all had arrived.

A collective is a wait until the last rank has arrived, and a transfer after that. Ranks of one machine share a clock;
those of other machines subtract what theirs is ahead of the notebook's, as exactly as a message there and back tells.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from operator import itemgetter

from ..protocol import CallRecord
from ..rank_spec import named
from .matching import MatchedCall
from .story import Span, Timeline

_MATTERS = 0.1
"""Seconds for which others must have waited before a straggler is named."""


def timeline(
    cell: int,
    windows: Mapping[int, tuple[float, float]],
    met: Sequence[MatchedCall],
    *,
    running: bool,
    since: float = 0.0,
) -> Timeline:
    """Make the timeline of a cell.

    Args:
        cell: its number.
        windows: for each rank that ran it, when its part began and ended (or the present time), by `time.time`.
        met: the cell's matched calls.
        running: whether it still runs.
        since: the time before which the ranks' calls are no longer known.
    """
    if not windows:
        return Timeline(cell, 0.0, running, {})
    zero = min(began for began, _ in windows.values())
    end = max(ended for _, ended in windows.values())
    own: dict[int, list[MatchedCall]] = {rank: [] for rank in sorted(windows)}
    for matched in met:
        for rank, step in matched.steps.items():
            if rank in own and _asked(step) < math.inf:
                own[rank].append(matched)
    spans = {
        rank: _bar(rank, (max(windows[rank][0], since), windows[rank][1]), mine, zero, running=running)
        for rank, mine in own.items()
    }
    late, sentence = straggler(met, more=since > zero)
    return Timeline(cell, max(0.0, end - zero), running, spans, sentence, late)


def straggler(met: Sequence[MatchedCall], *, more: bool = False) -> tuple[int | None, str]:
    """Return the rank for which the others waited longest, and a sentence; None and "" if no wait was long.

    Args:
        met: the cell's matched calls.
        more: whether the cell made earlier calls that are no longer known.
    """
    shared = [matched for matched in met if len(matched.members) > 1 and not matched.missing]
    last: dict[int, int] = {}
    waited: dict[int, dict[int, float]] = {}
    for matched in shared:
        late = max(matched.steps, key=lambda rank: matched.steps[rank].began)
        last[late] = last.get(late, 0) + 1
        for rank, step in matched.steps.items():
            each = waited.setdefault(late, {})
            each[rank] = each.get(rank, 0.0) + max(0.0, matched.met - _asked(step))
    if not waited:
        return None, ""
    worst = max(waited, key=lambda rank: max(waited[rank].values()))
    longest = max(waited[worst].values())
    if longest < _MATTERS:
        return None, ""
    whole = f"{'the last ' * more}{len(shared)} collectives"
    count = f"{last[worst]} of {whole}" if len(shared) > 1 else "the only collective"
    others = [rank for rank in waited[worst] if rank != worst]
    return worst, f"{named([worst])} came last in {count}; {named(others)} waited up to {longest:.1f} s for it."


def _bar(
    rank: int, window: tuple[float, float], mine: Sequence[MatchedCall], zero: float, *, running: bool
) -> tuple[Span, ...]:
    began, ended = window
    spans: list[Span] = []
    at = began

    def add(kind: str, start: float, end: float, call: tuple[str, str, int]) -> None:
        nonlocal at
        start, end = max(start, at), min(end, ended)
        if end <= start:
            return
        if start > at:
            spans.append(Span("compute", at - zero, start - zero))
        spans.append(Span(kind, start - zero, end - zero, *call))
        at = end

    begins = sorted(each.steps[rank].began for each in mine)
    own = sorted(((_waited(each.steps[rank], begins), each) for each in mine), key=itemgetter(0))
    later = [*(asked for asked, _ in own[1:]), None]
    for (asked, matched), following in zip(own, later, strict=False):
        step = matched.steps[rank]
        until = step.ended or _until(matched, step, following, ended, running=running)
        call = f"{step.name} #{matched.number}", step.line or matched.line, step.nbytes
        add("waiting", asked, min(matched.met, until), call)
        add("transfer", max(asked, matched.met), until, call)
    if ended > at:
        spans.append(Span("compute", at - zero, ended - zero))
    return tuple(_joined(spans))


def _asked(step: CallRecord) -> float:
    """Return when a rank began to wait, or else when it called; the time between the two is its own work."""
    return step.asked or step.began


def _waited(step: CallRecord, begins: Sequence[float]) -> float:
    """Return when a rank began to wait for a call. If C++ does (DDP), that is not told: then it is deduced.

    Args:
        step: the call.
        begins: when this rank's calls began, ascending. Who makes another one does not wait in this one yet.
    """
    if step.asked or not step.ended:
        return _asked(step)
    return begins[max(bisect_left(begins, step.ended) - 1, bisect_left(begins, step.began))]


def _until(matched: MatchedCall, step: CallRecord, later: float | None, ended: float, *, running: bool) -> float:
    """Estimate when a call ended that has no recorded end: it goes on, it failed, or C++ waited for it (DDP's)."""
    goes_on = later is None and (running or step.failed)
    return min(ended, ended if later is None else later, ended if goes_on else matched.met)


def _joined(spans: Sequence[Span]) -> list[Span]:
    """Join neighbouring spans of the same kind."""
    joined: list[Span] = []
    for span in spans:
        if joined and joined[-1].kind == span.kind:
            before = joined.pop()
            same = (before.name, before.line, before.nbytes) == (span.name, span.line, span.nbytes)
            call = (span.name, span.line, span.nbytes) if same else ("", "", 0)
            joined.append(Span(span.kind, before.start, span.end, *call))
        else:
            joined.append(span)
    return joined
