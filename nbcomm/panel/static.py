"""What stays of the panel where no JavaScript runs: a saved notebook, GitHub, a terminal.

A plain table with words: GitHub strips every style, and a saved notebook is often read without a kernel.
``panel.js`` has the same `sentence` and units in JavaScript; ``tests/panel/cases.json`` holds both to one answer.
"""

from __future__ import annotations

import datetime as dt
import html
import time
from collections.abc import Sequence
from dataclasses import dataclass

from nbcomm.ranks import fold

STATES = ("starting", "idle", "running", "waiting", "failed", "interrupted", "dead")

# In the sentence the culprit comes first.
_URGENCY = ("dead", "failed", "interrupted", "waiting", "running", "starting")

_WHO, _NOTE = 24, 80  # characters in the sentence


@dataclass(frozen=True)
class RankView:
    """One rank as the panel shows it.

    Attributes:
        rank: global rank.
        local_rank: rank among those of its node.
        node_rank: number of its node, from 0.
        host: name of the machine.
        device: what `torch.device` takes, ``"cpu"`` or ``"cuda:1"``.
        pid: process id on its host.
        state: one of `STATES`.
        since: when it entered that state, in seconds of `time.time`.
        memory: resident memory of the process in bytes; 0 = unknown.
        device_memory: memory used on its device in bytes.
        device_total: memory of its device in bytes; 0 = unknown.
        note: one short line about the state ("killed by SIGKILL"), or nothing.
        error: the error that ended its last cell in one line ("ValueError: …"); stays until a cell ends well.
    """

    rank: int
    local_rank: int = 0
    node_rank: int = 0
    host: str = ""
    device: str = "cpu"
    pid: int = 0
    state: str = "starting"
    since: float = 0.0
    memory: int = 0
    device_memory: int = 0
    device_total: int = 0
    note: str = ""
    error: str = ""


def duration(seconds: float) -> str:
    """Write a duration with its two largest units.

    >>> duration(12.7), duration(125), duration(3 * 3600 + 60)
    ('12 s', '2 min 5 s', '3 h 1 min')
    """
    whole = max(0, int(seconds))  # another host's clock may be ahead of ours
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def amount(size: int) -> str:
    """Write bytes with at least two digits; unknown (0) is a dash.

    >>> amount(0), amount(734_003_200), amount(5 << 30)
    ('–', '700 MiB', '5.0 GiB')
    """
    if size <= 0:
        return "–"
    mib = size / 2**20
    if mib < 999.5:
        return f"{max(1, int(mib + 0.5))} MiB"
    # int(x + 0.5) rather than round(): JavaScript rounds halves up, and both must write the same.
    tenths = int(mib / 1024 * 10 + 0.5)
    return f"{tenths // 10}.{tenths % 10} GiB" if tenths < 1000 else f"{int(mib / 1024 + 0.5)} GiB"


def sentence(ranks: Sequence[RankView], now: float) -> str:
    """Say in one line what the ranks are doing, the culprits first.

    >>> sentence([RankView(0, state="running", since=5.0), RankView(1, state="idle")], now=17.0)
    'running for 12 s on rank 0'
    """
    parts = []
    for state in _URGENCY:
        some = [view for view in ranks if view.state == state]
        if some:
            parts.append(_phrase(state, some, now))
    return " · ".join(parts) or f"{_ranks(len(ranks))} idle"


def _phrase(state: str, some: Sequence[RankView], now: float) -> str:
    folded = fold(view.rank for view in some)
    # Every third of 64 ranks is no longer a sentence; the cards and tiles say which they are.
    who = f"rank{'s' if len(some) > 1 else ''} {folded}" if len(folded) <= _WHO else _ranks(len(some))
    since = duration(now - min(view.since for view in some))
    notes = {" ".join(view.note.split()) for view in some}
    note = notes.pop() if len(notes) == 1 else ""
    note = f" ({note if len(note) <= _NOTE else note[: _NOTE - 1] + '…'})" if note else ""
    if state == "dead":
        return f"{who} died{note}"
    if state in ("failed", "interrupted"):
        return f"{who} {state}{note}"
    if state == "waiting":
        return f"{who} waiting for {since}{note}"
    return f"{state} for {since} on {who}{note}"


def size_line(ranks: Sequence[RankView], backend: str) -> str:
    """Say how large the world is: ``"4 ranks on 1 node · gloo"``."""
    nodes = len({view.node_rank for view in ranks})
    size = f"{_ranks(len(ranks))} on {nodes} node{'s' if nodes > 1 else ''}"
    return f"{size} · {backend}" if backend else size


def table_text(
    ranks: Sequence[RankView], title: str, headline: str | None = None, *, backend: str = "", now: float | None = None
) -> str:
    """The table as text.

    Args:
        ranks: all ranks of the world, ascending.
        title: what the world is called.
        headline: the one sentence; None derives it from the states.
        backend: the process group's, if known.
        now: the time the table is of, in seconds of `time.time`; None is now.
    """
    now = time.time() if now is None else now
    names, rows = _table(ranks, now)
    widths = [max(len(line[column]) for line in [names, *rows]) for column in range(len(names))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in [names, *rows]
    ]
    return "\n".join([f"{title} · {size_line(ranks, backend)}", headline or sentence(ranks, now), *lines])


def table_html(
    ranks: Sequence[RankView], title: str, headline: str | None = None, *, backend: str = "", now: float | None = None
) -> str:
    """The same table as HTML without any style; the arguments are those of `table_text`."""
    now = time.time() if now is None else now
    names, rows = _table(ranks, now)
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in names)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    at = _local(now)
    return (
        f"<div><b>{html.escape(title)}</b> · {html.escape(size_line(ranks, backend))}</div>"
        f"<div>{html.escape(headline or sentence(ranks, now))} <i>(as of {at:%Y-%m-%d %H:%M:%S})</i></div>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _table(ranks: Sequence[RankView], now: float) -> tuple[list[str], list[list[str]]]:
    """Column names and cells; a column in which no rank has anything to say is left out."""
    size = len(ranks)
    # One machine's name adds nothing, and need not travel with a notebook that is passed on.
    several = len({view.node_rank for view in ranks}) > 1
    columns: dict[str, list[str]] = {
        "rank": [f"{view.rank} of {size}" for view in ranks],
        "local": [str(view.local_rank) for view in ranks],
        "node": [f"{view.node_rank} ({view.host})" if several and view.host else str(view.node_rank) for view in ranks],
        "device": [view.device for view in ranks],
        "pid": [str(view.pid or "–") for view in ranks],
        "memory": [amount(view.memory) for view in ranks],
        "device memory": [
            f"{amount(view.device_memory)} of {amount(view.device_total)}" if view.device_total else ""
            for view in ranks
        ],
        "state": [view.state for view in ranks],
        "since": [_since(view.since, now) for view in ranks],
        "note": [" ".join(view.note.split()) for view in ranks],
    }
    shown = {name: cells for name, cells in columns.items() if any(cells) or name == "rank"}
    return list(shown), [list(row) for row in zip(*shown.values(), strict=True)]


def _since(since: float, now: float) -> str:
    if not since:
        return ""
    start, at = _local(since), _local(now)
    clock = f"{start:%H:%M:%S}" if start.date() == at.date() else f"{start:%Y-%m-%d %H:%M:%S}"
    return f"{clock} ({duration(now - since)})"


def _local(seconds: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(seconds, tz=dt.timezone.utc).astimezone()


def _ranks(count: int) -> str:
    return f"{count} rank{'' if count == 1 else 's'}"
