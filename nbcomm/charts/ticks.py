"""Where an axis has its marks."""

from __future__ import annotations

import math


def even(most: float, about: int = 5) -> list[float]:
    """Return round numbers from 0 to ``most``, at equal distances.

    >>> even(0.7), even(23)
    ([0.0, 0.2, 0.4, 0.6], [0, 5, 10, 15, 20])
    """
    if most <= 0 or not math.isfinite(most):
        return [0]
    power = 10 ** math.floor(math.log10(most / about))
    step = next(factor * power for factor in (1, 2, 5, 10) if most / (factor * power) <= about)
    return [round(step * number, 12) for number in range(int(most / step * (1 + 1e-9)) + 1)]


def even_bytes(most: float, about: int = 5) -> list[float]:
    """Return the same for bytes: each distance is a power of two.

    >>> even_bytes(100 << 20) == [0, 32 << 20, 64 << 20, 96 << 20]
    True
    """
    if most < 1:
        return [0]
    step = 2 ** max(0, math.ceil(math.log2(most / about)))
    return [step * number for number in range(int(most / step) + 1)]


def powers(least: float, most: float, base: int, about: int = 6) -> list[float]:
    """Return powers of ``base`` from below ``least`` to above ``most``, for a logarithmic axis.

    >>> powers(1500, 5e5, 10)
    [1000, 10000, 100000, 1000000]
    """
    first, last = math.floor(math.log(least, base) + 1e-9), math.ceil(math.log(most, base) - 1e-9)
    last = max(last, first + 1)
    step = math.ceil((last - first) / about)
    return [base**power for power in range(first, last + step, step)]
