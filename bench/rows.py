"""What a measurement returns, how samples are taken, and how the table is printed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        what: what was measured.
        measured: the figures, in words.
        ratio: what the target is about; None where there is only a figure.
        target: the largest ratio that is good enough; None where nothing was promised.
    """

    what: str
    measured: str
    ratio: float | None = None
    target: float | None = None

    @property
    def verdict(self) -> str:
        """Met or missed."""
        if self.ratio is None or self.target is None:
            return ""
        return "met" if self.ratio <= self.target else "MISSED"


def seconds(work: Callable[[], object]) -> float:
    """Time one call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def interleaved(rounds: int, *works: Callable[[], object]) -> list[float]:
    """Time several things in turn, so that a busy moment hits all of them; the median of each, in seconds."""
    samples: list[list[float]] = [[] for _ in works]
    for _ in range(rounds):
        for kept, work in zip(samples, works, strict=True):
            kept.append(seconds(work))
    return [statistics.median(kept) for kept in samples]


def print_table(rows: Sequence[Row]) -> None:
    """Print rows as they are."""
    width = max(len(row.what) for row in rows)
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:8.2f}"
        target = "" if row.target is None else f"≤ {row.target:g}"
        print(f"{row.what:<{width}}  {ratio:>8}  {target:>7}  {row.verdict:<6}  {row.measured}")
