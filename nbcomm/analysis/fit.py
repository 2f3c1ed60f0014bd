"""What a collective costs: the time that every call takes, and the time of each byte."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """The line ``alpha + beta · bytes`` that fits measured times.

    Attributes:
        alpha: seconds of a call without data.
        beta: seconds of a byte.
        alpha_error: half of the interval in which ``alpha`` is with about 95 % confidence; infinity for two sizes.
        beta_error: the same of ``beta``.
    """

    alpha: float
    beta: float
    alpha_error: float = math.inf
    beta_error: float = math.inf

    @property
    def knee(self) -> float:
        """The size in bytes at which half of the time is ``alpha``; infinity if no byte costs any."""
        return self.alpha / self.beta if self.beta > 0 else math.inf

    def seconds(self, nbytes: float) -> float:
        """Return the time of a call with so many bytes."""
        return self.alpha + self.beta * nbytes


def fit(times: Sequence[tuple[int, float]]) -> Cost:
    """Fit the line to times, each of which counts alike: their relative errors are made small.

    Neither number gets less than 0, which noise may suggest.

    Args:
        times: sizes in bytes, each with its time in seconds, which is more than 0; two different sizes at least.

    >>> cost = fit([(size, 1e-4 + 1e-9 * size) for size in (1000, 10**5, 10**7)])
    >>> round(cost.alpha * 1e6), round(cost.beta * 1e9, 3), round(cost.knee)
    (100, 1.0, 100000)
    """
    # Least squares of 1 = alpha / t + beta * n / t.
    rows = [(1 / t, n / t) for n, t in times]
    aa = sum(a * a for a, _ in rows)
    ab = sum(a * b for a, b in rows)
    bb = sum(b * b for _, b in rows)
    a1, b1 = sum(a for a, _ in rows), sum(b for _, b in rows)
    det = aa * bb - ab * ab
    if len({n for n, _ in times}) < 2 or det <= 0:
        raise ValueError("A line needs times of two different sizes at least.")
    alpha, beta = (a1 * bb - b1 * ab) / det, (b1 * aa - a1 * ab) / det
    if alpha < 0:
        alpha, beta = 0.0, b1 / bb
    elif beta < 0:
        alpha, beta = a1 / aa, 0.0
    free = len(rows) - 2
    if free < 1:
        return Cost(alpha, beta)
    spread = sum((1 - alpha * a - beta * b) ** 2 for a, b in rows) / free
    return Cost(alpha, beta, 2 * math.sqrt(spread * bb / det), 2 * math.sqrt(spread * aa / det))
