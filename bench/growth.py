"""How the cost of a world grows with its ranks, on one machine: start, cells, healing, memory.

With fewer cores than ranks, most of a cell's time is that of the ranks themselves, one after the other. So the
notebook's own time (CPU of this process) stands beside it.
"""

from __future__ import annotations

import statistics
import time

import psutil

import nbcomm
from nbcomm.notebook.session.session import Session

from .rows import Row, seconds

_STEPS = "for _ in range(200): dist.barrier()"
"""A cell whose answers are long: each rank reports all of its collectives."""


def measure(rounds: int, *, full: bool) -> list[Row]:
    """One world after the other, each with four times the ranks of the last."""
    return [row for n in ((4, 16, 64) if full else (4, 16)) for row in _world(n, max(5, rounds))]


def _world(n: int, rounds: int) -> list[Row]:
    began = time.perf_counter()
    session = nbcomm.start(n, timeout=600)
    started = time.perf_counter() - began
    with session:
        session.run("all_reduce(rank);")
        trivial, own = _cells(session, "x = 1", rounds)
        steps, own_steps = _cells(session, _STEPS, 3)
        memory = _memory(session)
        heal = seconds(lambda: session.heal([1, n - 1]))
    return [
        Row(f"{n} ranks: start", f"{started:.2f} s"),
        Row(f"{n} ranks: trivial cell", f"{trivial * 1e3:.1f} ms, the notebook's CPU {own * 1e3:.2f} ms"),
        Row(f"{n} ranks: cell with 200 barriers", f"{steps * 1e3:.0f} ms, the notebook's CPU {own_steps * 1e3:.1f} ms"),
        Row(f"{n} ranks: replace two", f"{heal:.2f} s"),
        Row(f"{n} ranks: memory of all processes", f"{memory / 2**20:,.0f} MiB PSS, {memory / n / 2**20:.0f} a rank"),
    ]


def _cells(session: Session, code: str, rounds: int) -> tuple[float, float]:
    """Return the median time of a cell, and the CPU time of this process for one, in seconds."""
    session.run(code)
    before = time.process_time()
    took = [seconds(lambda: session.run(code)) for _ in range(rounds)]
    return statistics.median(took), (time.process_time() - before) / rounds


def _memory(session: Session) -> int:
    """Return the proportional memory of all processes of a world, without the notebook's, in bytes."""
    rank = psutil.Process(session.status()[0].pid)
    server = rank.parent()
    world = [server, *server.children(recursive=True)] if server is not None else []
    return sum(process.memory_full_info().pss for process in world)
