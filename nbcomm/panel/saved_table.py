"""The panel without JavaScript: in a saved notebook, on GitHub, in a terminal.

Plain tables with words: GitHub strips every style, and a saved notebook is often read without a kernel.
"""

from __future__ import annotations

import datetime as dt
import html
import time
from collections.abc import Callable, Mapping, Sequence

from nbcomm.rank_spec import fold

from ..analysis.story import MARKS, WORDS, Ladder, Past, Timeline
from ..durations import duration
from ..frontend.tables import aligned, marked_up
from .words import (
    JobView,
    RankView,
    amount,
    blames,
    ladder_line,
    memory,
    named,
    past_line,
    sentence,
    size_line,
)

CARDS = 8
"""With more ranks than this, ranks with the same marks share a row of the ladder."""

_ROWS = 16
"""With more ranks than this, those of a node that do the same share a row of the table."""

_ERROR = 300  # characters of an error
_RUNGS = 6  # columns of the ladder: a fault is in the last ones, and a page is not wider


def table_text(  # noqa: PLR0913  # by keyword, and each is a part of the picture
    ranks: Sequence[RankView],
    title: str,
    headline: str | None = None,
    *,
    ladder: Ladder | None = None,
    timeline: Timeline | None = None,
    past: Sequence[Past] = (),
    backend: str = "",
    job: JobView | None = None,
    now: float | None = None,
    copied: bool = False,
) -> str:
    """Return the table as text.

    Args:
        ranks: all ranks of the world, ascending.
        title: the world's title.
        headline: the panel's sentence; None derives it from the states.
        ladder: the last collectives; they are shown if something in them is wrong.
        timeline: the timeline of the last cell; its sentence is shown.
        past: the last cells; a rank that the others waited for in several of them is shown.
        backend: the process group's backend, if known.
        job: the scheduler's job that the world is in, if any; what is left of its time is as of ``now``.
        now: the time of the table, in seconds of `time.time`; None is now.
        copied: whether it stays, and is read later: then it says of what time it is.
    """
    now = time.time() if now is None else now
    said = headline or sentence(ranks, now)
    shown = _as_of(said, now) if copied else said
    lines = [f"{title} · {size_line(ranks, backend, job, now)}", shown, *aligned(_table(ranks, ladder, now))]
    lines += [f"{who}: {error}" for who, error in _errors(ranks)]
    if wrong := ladder_line(ladder):
        lines += ["", *([wrong] if wrong != said else []), *aligned(_ladder(ladder)), _legend(ladder)]
    if told := _late(timeline, past):
        lines += ["", *told]
    return "\n".join(lines)


def table_html(  # noqa: PLR0913  # by keyword, and each is a part of the picture
    ranks: Sequence[RankView],
    title: str,
    headline: str | None = None,
    *,
    ladder: Ladder | None = None,
    timeline: Timeline | None = None,
    past: Sequence[Past] = (),
    backend: str = "",
    job: JobView | None = None,
    now: float | None = None,
) -> str:
    """Return the table as HTML without styles, which stays; the arguments are those of `table_text`."""
    now = time.time() if now is None else now
    said = headline or sentence(ranks, now)
    parts = [
        f"<div><b>{html.escape(title)}</b> · {html.escape(size_line(ranks, backend, job, now))}</div>",
        f"<div>{html.escape(_as_of(said, now))}</div>",
        marked_up(_table(ranks, ladder, now)),
    ]
    parts += [f"<div>{html.escape(who)}: <code>{html.escape(error)}</code></div>" for who, error in _errors(ranks)]
    if wrong := ladder_line(ladder):
        parts += [f"<div>{html.escape(wrong)}</div>"] if wrong != said else []
        parts += [marked_up(_ladder(ladder), row_headers=True), f"<div>{html.escape(_legend(ladder))}</div>"]
    parts += [f"<div>{html.escape(line)}</div>" for line in _late(timeline, past)]
    return "".join(parts)


def _as_of(said: str, now: float) -> str:
    """Return the sentence of a copy, which may be read when the world is long gone."""
    return f"As of {_local(now):%Y-%m-%d %H:%M:%S}, when this copy was made: {said}"


def lasting(ladder: Ladder | None, timeline: Timeline | None) -> tuple[object, ...]:
    """Return the parts of the two that the tables show; if these are equal, so are the tables."""
    return (ladder if ladder_line(ladder) else None), (timeline.said if timeline is not None else "")


def _late(timeline: Timeline | None, past: Sequence[Past]) -> list[str]:
    """Return sentences about ranks that the others waited for, in the last cell and in earlier ones."""
    return [line for line in (timeline.said if timeline is not None else "", past_line(past)) if line]


def _errors(ranks: Sequence[RankView]) -> list[tuple[str, str]]:
    """Return each last error once, with the ranks that have it."""
    having: dict[str, list[int]] = {}
    for view in ranks:
        if error := " ".join(view.error.split()):
            having.setdefault(error, []).append(view.rank)
    return [
        (named(some), error if len(error) <= _ERROR else error[: _ERROR - 1] + "…") for error, some in having.items()
    ]


def _ladder(ladder: Ladder | None) -> tuple[list[str], list[list[str]]]:
    """Return names and cells: a column for each of the last collectives, a row for each rank or set of equal ranks."""
    rungs = ladder.rungs[-_RUNGS:] if ladder is not None else ()
    alike: dict[object, tuple[list[int], tuple[str, ...]]] = {}
    columns = [rung.marks for rung in rungs]
    for rank, marks in enumerate(zip(*columns, strict=True)):
        if set(marks) != {"out"}:
            alike.setdefault(marks if len(columns[0]) > CARDS else rank, ([], marks))[0].append(rank)
    names = ["rank", *(f"#{rung.seq} {rung.name}" for rung in rungs)]
    return names, [[fold(some), *(MARKS.get(mark, "?") for mark in marks)] for some, marks in alike.values()]


def _legend(ladder: Ladder | None) -> str:
    used = {mark for rung in (ladder.rungs[-_RUNGS:] if ladder is not None else ()) for mark in rung.marks}
    return " · ".join(f"{glyph} {WORDS[mark]}" for mark, glyph in MARKS.items() if glyph and mark in used)


def _table(ranks: Sequence[RankView], ladder: Ladder | None, now: float) -> tuple[list[str], list[list[str]]]:
    """Return column names and cells, without columns that are empty for all ranks."""
    rows = _alike(ranks, blames(ranks, ladder, now))
    # The name of a single machine adds nothing, and should not be passed on with a notebook.
    several = len({view.node_rank for view in ranks}) > 1
    columns: dict[str, list[str]] = {
        "rank": [fold(view.rank for view in row) for _, row in rows],
        "local": [fold(view.local_rank for view in row) for _, row in rows],
        "node": [
            f"{row[0].node_rank} ({row[0].host})" if several and row[0].host else str(row[0].node_rank)
            for _, row in rows
        ],
        "device": [_devices(row) for _, row in rows],
        "pid": [str(row[0].pid or "–") if len(row) == 1 else "" for _, row in rows],
        "memory": [_from_to(row, lambda view: view.memory, memory) for _, row in rows],
        "device memory": [_from_to(row, lambda view: view.device_memory, _device_memory) for _, row in rows],
        "GPU": [row[0].on_gpu if len(row) == 1 else "" for _, row in rows],
        "state": [row[0].state for _, row in rows],
        "since": [_since(min(view.since for view in row), now) for _, row in rows],
        "note": [note for note, _ in rows],
    }
    shown = {name: cells for name, cells in columns.items() if any(cells) or name == "rank"}
    return list(shown), [list(row) for row in zip(*shown.values(), strict=True)]


def _alike(ranks: Sequence[RankView], blamed: Mapping[int, str]) -> list[tuple[str, list[RankView]]]:
    """Return the ranks of each row, with their note."""
    rows: dict[object, tuple[str, list[RankView]]] = {}
    for view in ranks:
        note = " ".join(view.note.split()) or blamed.get(view.rank, "")
        key = (view.node_rank, view.device.partition(":")[0], view.state, note) if len(ranks) > _ROWS else view.rank
        rows.setdefault(key, (note, []))[1].append(view)
    return list(rows.values())


def _devices(row: Sequence[RankView]) -> str:
    """Name the devices of a row: "cuda:0-7"."""
    kind, _, first = row[0].device.partition(":")
    return f"{kind}:{fold(int(view.device.partition(':')[2]) for view in row)}" if first else kind


def _device_memory(view: RankView) -> str:
    return f"{amount(view.device_memory)} of {amount(view.device_total)}" if view.device_total else ""


def _from_to(row: Sequence[RankView], size: Callable[[RankView], int], words: Callable[[RankView], str]) -> str:
    """Return the least and the most of a row."""
    least, most = words(min(row, key=size)), words(max(row, key=size))
    return least if least == most else f"{least} to {most}"


def _since(since: float, now: float) -> str:
    if not since:
        return ""
    start, at = _local(since), _local(now)
    clock = f"{start:%H:%M:%S}" if start.date() == at.date() else f"{start:%Y-%m-%d %H:%M:%S}"
    return f"{clock} ({duration(now - since)})"


def _local(seconds: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(seconds, tz=dt.timezone.utc).astimezone()
