"""Stamps along a cell's way: functions of nbcomm that note when they are called, and when they return.

They are put in from here, into a kernel and into its ranks by a cell, so that the way itself has no code for them, and
costs nothing where nobody asks. This module imports nothing of ours: it is loaded where it measures.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Point(NamedTuple):
    """A place on the way.

    Attributes:
        stage: what ends here, in words.
        where: the process, "notebook" or "rank".
        function: its module below nbcomm, its class, and its name.
        after: whether it is its return that counts, and not its call.
        only: the kind of message that counts, where the function takes several.
    """

    stage: str
    where: str
    function: str
    after: bool = False
    only: str = ""


WAY = (
    Point("kernel, shell: the page's message, the magic", "notebook", "notebook.session.commands:Commands._run"),
    Point("session: options, ranks, output", "notebook", "notebook.execution.cell_run:CellExecutor.perform"),
    Point("execution: the request", "notebook", "launch.link:Link.send_each"),
    Point("link: encode, hand over", "notebook", "launch.link:Link.send_each", after=True),
    Point("link's threads, the wire, the node: there", "rank", "rank.link:RankLink._take", only="Run"),
    Point("rank, link's thread: decode, hand over", "rank", "rank.main_loop:MainLoop._handle", only="Run"),
    Point("rank, main thread: before the cell", "rank", "rank.cells.shell:RankShell.run_cell"),
    Point("run_cell", "rank", "rank.cells.shell:RankShell.run_cell", after=True),
    Point("rank, main thread: the end of the cell", "rank", "rank.main_loop:MainLoop._answer", only="Done"),
    Point("rank: output, encode", "rank", "rank.link:RankLink._rouse"),
    Point(
        "link's threads, the wire, the node: back",
        "notebook",
        "notebook.session.message_router:MessageRouter._end",
        only="Done",
    ),
    Point("the last rank's answer: noted", "notebook", "notebook.output.cell_output:CellOutput.close"),
    Point("execution: the end", "notebook", "notebook.execution.cell_run:CellExecutor.perform", after=True),
)
"""The points in the order in which a cell passes them; the page's wait for its last message is behind them."""

BEHIND = "session, shell, kernel: the end"
"""The stage behind the last point."""

_Stamp = tuple[int, float]

_stamps: list[_Stamp] = []
_undo: list[Callable[[], None]] = []


def begin(where: str) -> None:
    """Note from now on when the points of this process are passed."""
    for number, point in enumerate(WAY):
        if point.where == where:
            _wrap(number, point)


def end(file: str) -> None:
    """Put everything back, and write down the stamps: of each the point's number in `WAY`, and the time in seconds."""
    while _undo:
        _undo.pop()()
    Path(file).write_text(json.dumps(_stamps), encoding="utf-8")
    _stamps.clear()


def _wrap(number: int, point: Point) -> None:
    module, _, path = point.function.partition(":")
    owner_name, _, name = path.partition(".")
    owner = getattr(importlib.import_module(f"nbcomm.{module}"), owner_name)
    own = vars(owner).get(name)  # None: it is inherited
    function, only, after, note, now = getattr(owner, name), point.only, point.after, _stamps.append, time.perf_counter

    @functools.wraps(function)
    def stamped(*args: Any, **keywords: Any) -> Any:
        if after:
            try:
                return function(*args, **keywords)
            finally:
                note((number, now()))
        if not only or any(type(arg).__name__ == only for arg in args):
            note((number, now()))
        return function(*args, **keywords)

    setattr(owner, name, stamped)
    _undo.append((lambda: delattr(owner, name)) if own is None else (lambda: setattr(owner, name, own)))


def spans(notebook: Sequence[_Stamp], ranks: Sequence[Sequence[_Stamp]], begun: Sequence[float]) -> list[list[float]]:
    """Return how long each stage took in each cell, in seconds; at a point of the ranks the last one counts.

    Args:
        notebook: the kernel's stamps.
        ranks: those of each rank.
        begun: when the page has sent each cell, and when the last one had ended.
    """
    cells = []
    for start, stop in itertools.pairwise(begun):
        at = [start]
        for number, point in enumerate(WAY):
            passed = [
                [when for which, when in stamps if which == number and start <= when < stop]
                for stamps in ((notebook,) if point.where == "notebook" else ranks)
            ]
            # The function may be called more often: for a point before the cell its first call counts.
            at.append(max((_of(number, times) for times in passed if times), default=at[-1]))
        at.append(stop)
        cells.append([max(0.0, later - earlier) for earlier, later in itertools.pairwise(at)])
    return cells


def _of(number: int, times: Sequence[float]) -> float:
    return times[-1] if WAY[number].only == "Done" or WAY[number].after or number > _RUN_CELL else times[0]


_RUN_CELL = next(number for number, point in enumerate(WAY) if point.stage == "run_cell")
