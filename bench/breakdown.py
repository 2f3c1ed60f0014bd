"""Where the time of a trivial cell goes, part by part, and how much processor time each process spends on it."""

from __future__ import annotations

import json
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from . import stamps
from .cells import kernel
from .floor import floor
from .rows import interleaved

SIZES = (1, 4, 16)
"""The worlds that are looked at, by their ranks."""

_TRIVIAL = "x = 1"
_CELL = f"%%distributed\n{_TRIVIAL}"
_LEAST = "_ = world.cell()"
_HERE = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r}); from bench import stamps\n"
_FLOOR = f"{_HERE}import contextlib; from bench.floor import floor; held = contextlib.ExitStack()\n"
_SERVES = re.compile(r"nbcomm\.(?:node|rank|launch)|ipcontroller")


class Cost:
    """What was measured of one world.

    Attributes:
        floor: seconds of the floor's round trip, one after the other.
        plain, least, cell: seconds of the plain kernel's cell, of one that makes the floor's round trip, and of a cell
            on the ranks, in turns.
        stages: the median of each stage of `stamps.WAY`, and of the one behind it, in seconds.
        rank, notebook, others: processor seconds of one cell: of one rank, of the kernel, of all other processes.
        least_rank: those of one of the floor's ranks, in a kernel.
    """

    def __init__(self, n: int, rounds: int) -> None:
        with floor(n) as least:
            for _ in range(rounds):
                least.cell()
            self.floor = statistics.median(least.cell() for _ in range(4 * rounds))
        with kernel(0) as (_, other), kernel(n) as (_, run):
            begun = f"{_FLOOR}world = held.enter_context(floor({n})); print(*(f'pid {{pid}}' for pid in world.pids))"
            least_pids = [int(pid) for pid in _printed(other, begun)]
            for _ in range(rounds):
                run(_CELL)
                other(_LEAST)
            plain = _cell_and_pid(run)
            before = sum(map(_spent, least_pids))
            self.plain, self.least, self.cell = interleaved(
                2 * rounds, lambda: run(_TRIVIAL), lambda: other(_LEAST), lambda: run(_CELL)
            )
            self.least_rank = (sum(map(_spent, least_pids)) - before) / (2 * rounds * n)
            pids = [int(pid) for pid in _printed(run, "%%distributed --by-rank\nimport os; print('pid', os.getpid())")]
            self.rank, self.notebook, self.others = _processor_time(plain, pids, run, 8 * rounds)
            self.stages = _stages(n, run, 4 * rounds)

    @property
    def ratio(self) -> float:
        """The cell, in parts of the plain kernel's cell and the floor, each measured by itself."""
        return self.cell / (self.plain + self.floor)

    @property
    def least_ratio(self) -> float:
        """The cell, in parts of what it cannot be below: one that makes the floor's round trip in a kernel."""
        return self.cell / self.least


def _cell_and_pid(run: Callable[[str], list[str]]) -> int:
    (pid,) = _printed(run, "import os; print('pid', os.getpid())")
    return int(pid)


def _printed(run: Callable[[str], list[str]], code: str) -> list[str]:
    return re.findall(r"pid (\d+)", "".join(run(code)))


def _processor_time(
    kernel_pid: int, ranks: Sequence[int], run: Callable[[str], list[str]], cells: int
) -> tuple[float, float, float]:
    """Return the processor seconds of a cell: the mean of the ranks, the kernel, the sum of what else serves them.

    What the kernel needs for a plain cell is taken off: it would need that for any.
    """
    pids = [kernel_pid, *ranks, *_others(kernel_pid, ranks)]
    run(_CELL)
    spent = []
    for code in (_TRIVIAL, _CELL):
        before = [*map(_spent, pids)]
        for _ in range(cells):
            run(code)
        spent.append([(_spent(pid) - at) / cells for pid, at in zip(pids, before, strict=True)])
    idle, busy = spent
    of_ranks = [one - other for one, other in zip(busy, idle, strict=True)]
    return statistics.mean(of_ranks[1 : 1 + len(ranks)]), of_ranks[0], sum(of_ranks[1 + len(ranks) :])


def _others(kernel_pid: int, ranks: Sequence[int]) -> list[int]:
    """Return the processes that serve these ranks: their ancestors, except the kernel's, and what those started."""
    serving: set[int] = set()
    ancestors = [parent for parent in psutil.Process(ranks[0]).parents() if parent.pid > 1]
    for parent in ancestors:
        if parent.pid == kernel_pid or not _SERVES.search(" ".join(parent.cmdline())):
            break
        serving.update((parent.pid, *(child.pid for child in parent.children(recursive=True))))
    return sorted(serving - {kernel_pid, *ranks})


def _spent(pid: int) -> float:
    """Return the processor time of a process in seconds, as finely as Linux counts it (clock_getcpuclockid)."""
    return time.clock_gettime((~pid << 3) | 2)


def _stages(n: int, run: Callable[[str], list[str]], cells: int) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        run(f"{_HERE}stamps.begin('notebook')")
        run(f"%%distributed --quiet\n{_HERE}stamps.begin('rank')")
        for _ in range(10):
            run(_CELL)
        begun = []
        for _ in range(cells):
            begun.append(time.perf_counter())
            run(_CELL)
        begun.append(time.perf_counter())
        run(f"%%distributed --quiet\nstamps.end(f'{folder}/{{rank}}')")
        run(f"stamps.end('{folder}/notebook')")
        read = {file.name: json.loads(file.read_text()) for file in Path(folder).iterdir()}
    took = stamps.spans(read["notebook"], [read[str(rank)] for rank in range(n)], begun)
    return [statistics.median(stage) for stage in zip(*took, strict=True)]


def print_breakdown(*, quick: bool) -> None:
    """Measure worlds of several sizes, and print their costs beside each other, in milliseconds."""
    sizes = SIZES
    costs = [Cost(n, 5 if quick else 50) for n in sizes]
    rows = [(point.stage, [cost.stages[at] for cost in costs]) for at, point in enumerate(stamps.WAY)]
    rows.append((stamps.BEHIND, [cost.stages[-1] for cost in costs]))
    _print("a trivial cell, its parts in ms (medians)", [f"{n} rank{'s' * (n > 1)}" for n in sizes], rows)
    _print(
        "whole, in ms (medians)",
        ["" for _ in sizes],
        [
            ("a plain cell of the kernel", [cost.plain for cost in costs]),
            ("floor: sockets, threads, run_cell", [cost.floor for cost in costs]),
            ("a kernel's cell that makes that round trip", [cost.least for cost in costs]),
            ("a cell on the ranks", [cost.cell for cost in costs]),
            ("  in parts of plain + floor", [cost.ratio / 1e3 for cost in costs]),
            ("  in parts of the floor in a kernel", [cost.least_ratio / 1e3 for cost in costs]),
        ],
    )
    _print(
        "processor time of a cell in ms",
        ["" for _ in sizes],
        [
            ("each rank", [cost.rank for cost in costs]),
            ("each rank of the floor, in a kernel", [cost.least_rank for cost in costs]),
            ("the notebook, beside a plain cell", [cost.notebook for cost in costs]),
            ("all other processes together", [cost.others for cost in costs]),
        ],
    )


def _print(title: str, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[float]]]) -> None:
    print(f"{title:<48}" + "".join(f"{column:>10}" for column in columns))
    for name, figures in rows:
        print(f"  {name:<46}" + "".join(f"{figure * 1e3:>10.3f}" for figure in figures))
