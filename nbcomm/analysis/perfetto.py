"""A cell as a trace for https://ui.perfetto.dev or chrome://tracing: a track for each rank.

The format is Chrome's trace events (JSON).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import SpecError
from ..protocol import Done, RankPlacement
from .bandwidth import bandwidths
from .matching import MatchedCall, matched_calls


def check(path: str) -> Path:
    """Refuse a file that cannot be written, before anything runs, and return its path.

    Raises:
        SpecError: its folder does not exist, or it is itself a folder.
    """
    if not path.strip():
        raise SpecError("The trace needs a file's name, such as trace.json.")
    file = Path(path).expanduser()
    if file.is_dir():
        raise SpecError(f"{path!r} is a folder; name a file for the trace, such as trace.json.")
    if not file.parent.is_dir():
        raise SpecError(f"There is no folder {str(file.parent)!r} for the trace; make it first, or name another.")
    return file


def write(file: Path, places: list[RankPlacement], cell: int, code: str, answers: Mapping[int, Done]) -> int:
    """Write a cell's trace, and return how many collectives and messages are in it.

    Args:
        file: the file to write.
        places: the placement of all ranks of the world.
        cell: its number.
        code: its text.
        answers: each rank's answer at the cell's end.
    """
    known = {rank: done for rank, done in answers.items() if done.began}
    met = matched_calls({rank: done.steps for rank, done in known.items()})
    events = [event for place in places for event in _names(place)]
    at = {place.rank: {"pid": place.node_rank, "tid": place.rank} for place in places}
    zero = min((done.began for done in known.values()), default=0.0)
    for rank, done in known.items():
        events.append(_slice(f"cell {cell}", "cell", done.began - zero, done.seconds, at[rank], {"code": code}))
    for matched in met:
        for rank in matched.steps:
            events += _step(matched, rank, known[rank], zero, at[rank])
    dropped = sum(max(0, done.dropped) for done in known.values())
    content = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"cell": cell, "dropped": dropped}}
    file.write_text(json.dumps(content), encoding="utf-8")
    return len(met)


def _step(matched: MatchedCall, rank: int, done: Done, zero: float, track: dict[str, int]) -> list[dict[str, Any]]:
    step = matched.steps[rank]
    ended = step.ended or done.began + done.seconds
    seconds = max(0.0, (matched.ended or ended) - matched.met) if not matched.missing else 0.0
    algorithm, bus = bandwidths(step.name, matched.nbytes, seconds, len(matched.members))
    told = {
        "number": matched.number,
        "ranks": matched.members,
        "line": matched.line,
        "bytes": step.nbytes,
        "algorithm bandwidth (GB/s)": round(algorithm, 6),
        "bus bandwidth (GB/s)": round(bus, 6),
        "failed": step.failed,
        "missing": matched.missing,
    }
    events = [_slice(step.name, "collective", step.began - zero, ended - step.began, track, told)]
    if step.kind == "collective":
        wait = min(matched.met, ended) - step.began
        if wait > 0:
            events.append(_slice("waiting", "waiting", step.began - zero, wait, track))
        if ended > matched.met:
            events.append(_slice("transfer", "transfer", matched.met - zero, ended - matched.met, track))
    return events


def _names(place: RankPlacement) -> list[dict[str, Any]]:
    node = {"name": "process_name", "ph": "M", "pid": place.node_rank, "args": {"name": f"node {place.node_rank}"}}
    name = f"rank {place.rank} ({place.device})"
    track = {"pid": place.node_rank, "tid": place.rank}
    return [
        node,
        {"name": "thread_name", "ph": "M", **track, "args": {"name": name}},
        {"name": "thread_sort_index", "ph": "M", **track, "args": {"sort_index": place.rank}},
    ]


def _slice(  # noqa: PLR0913, PLR0917 - a slice has these
    name: str, kind: str, start: float, length: float, track: dict[str, int], told: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return a trace event of a stretch of time; start and length are in seconds, the event's in microseconds."""
    times = {"ts": round(start * 1e6, 1), "dur": round(max(0.0, length) * 1e6, 1)}
    return {"name": name, "cat": kind, "ph": "X", **times, **track, "args": told or {}}
