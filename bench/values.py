"""Values between the notebook and the ranks."""

from __future__ import annotations

import numpy as np

import nbcomm

from .rows import Row, interleaved

_MB = 1 << 20


def measure(rounds: int, *, full: bool) -> list[Row]:
    """64 MB to and from 4 ranks."""
    del full
    array = np.ones(64 * _MB, dtype=np.uint8)
    with nbcomm.start(4) as session:
        session.push(array=array)
        copy, push, pull = interleaved(
            max(3, rounds // 10),
            lambda: [array.copy() for _ in range(4)],
            lambda: session.push(array=array),
            lambda: session.pull("array"),
        )
    figures = f"push {push * 1e3:.0f} ms, memcpy {copy * 1e3:.0f} ms"
    return [
        Row("64 MB array to 4 ranks / memcpy of 4 × 64 MB", figures, push / copy, 2.0),
        Row("64 MB array from 4 ranks / memcpy of 4 × 64 MB", f"pull {pull * 1e3:.0f} ms", pull / copy),
    ]
