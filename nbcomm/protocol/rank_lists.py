"""Lists of ranks as short texts: ``"0-63"``, ``"0-6:2,9"``.

Messages hold such a text in place of a list: with many ranks the numbers would be most of what is sent. A text also
says at once whether two groups have the same members in the same order. Each call that a rank reports has its group's
text; in a message, the text is there once (`transit`).

Unlike a rank spec, which people write, a text keeps the ranks' order, and needs no world to be read.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

_PART = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([1-9][0-9]{0,8}))?)?")

_SHORTEST = 3
"""Ranks that are worth a dash: two are as short without."""

_KEPT = 1024
"""Texts that are remembered with their ranks: far more than a program has groups."""


def written(ranks: Sequence[int]) -> str:
    """Write ranks in their order. Equal steps, up or down, are written as ``first-last:step``.

    The same ranks in the same order always have the same text.

    >>> written(range(64)), written([0, 2, 4, 6, 9]), written([3, 2, 1, 0, 7]), written([])
    ('0-63', '0-6:2,9', '3-0,7', '')
    """
    parts = []
    at = 0
    while at < len(ranks):
        end = _end_of_run(ranks, at)
        if end - at < _SHORTEST:
            parts.append(str(ranks[at]))
            at += 1
        else:
            step = abs(ranks[at + 1] - ranks[at])
            parts.append(f"{ranks[at]}-{ranks[end - 1]}" + (f":{step}" if step > 1 else ""))
            at = end
    return ",".join(parts)


def _end_of_run(ranks: Sequence[int], at: int) -> int:
    """Return the place behind the ranks that follow each other by equal steps from a place on."""
    end = at + 1
    if end < len(ranks) and (step := ranks[end] - ranks[at]) != 0:
        while end < len(ranks) and ranks[end] - ranks[end - 1] == step:
            end += 1
    return end


@functools.lru_cache(_KEPT)
def read(text: str) -> tuple[int, ...]:
    """Return the ranks of a text, in their order.

    Raises:
        ValueError: it is no such text.

    >>> read("0-6:2,9"), read("3-0,7"), read("")
    ((0, 2, 4, 6, 9), (3, 2, 1, 0, 7), ())
    """
    ranks: list[int] = []
    for part in text.split(",") if text else ():
        match = _PART.fullmatch(part)
        if match is None:
            raise ValueError(f"{text!r} is no list of ranks.")
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        ranks += range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    return tuple(ranks)
