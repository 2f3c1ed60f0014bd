"""How long until the first collective is done."""

from __future__ import annotations

import subprocess
import sys

import nbcomm
from nbcomm.notebook.session import registry
from nbcomm.notebook.session.session import Session

from .deadline import SECONDS
from .rows import Row, interleaved, seconds

_started: list[Session] = []
"""Stopped when the clock does not run."""


def _import_torch() -> None:
    subprocess.run([sys.executable, "-c", "import torch"], check=True)


def _cold(n: int) -> None:
    registry.warm_up()
    session = nbcomm.start(n)
    session.run("all_reduce(rank)", quiet=True)
    _started.append(session)


def _warm(n: int) -> float:
    registry.warm_up()
    forkserver = registry._warm  # noqa: SLF001 - the very thing that is measured
    if forkserver is not None:
        forkserver.wait_ready(SECONDS)
    return seconds(lambda: _cold(n))


def measure(rounds: int, *, full: bool) -> list[Row]:
    """Cold and warm starts against one import of torch."""
    rows = []
    for n, target in ((4, 1.25), (16, 1.5)) if full else ((4, 1.25),):

        def cold(n: int = n) -> None:
            _cold(n)

        plain, started = interleaved(max(1, rounds // 10), _import_torch, cold)
        _stop_all()
        figures = f"start {started:.2f} s, import torch {plain:.2f} s"
        rows.append(Row(f"cold start to first collective, {n} ranks / import torch", figures, started / plain, target))
    warm = min(_warm(4) for _ in range(2))
    _stop_all()
    # 0.5 s where an import takes 2.1 s, as on the machine for which the target was set.
    rows.append(Row("warm start, 4 ranks / import torch", f"{warm:.2f} s", warm / plain, 0.5 / 2.1))
    return rows


def _stop_all() -> None:
    while _started:
        _started.pop().stop()
