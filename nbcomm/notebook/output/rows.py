"""Rows of lines, one of each rank, compared many at once: at the speed of sets and lists, and not line by line."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import chain, repeat
from operator import itemgetter
from typing import cast

from ..display.items import Line, Piece

Ranks = tuple[int, ...]

_of_row = itemgetter(1)


def common_lines(texts: Sequence[str]) -> str:
    r"""Return the whole lines with which all texts begin.

    >>> common_lines(["a\nb\nc\n", "a\nb\n", "a\nbc\n"])
    'a\n'
    """
    shortest = min(texts, key=len)
    end = len(shortest)
    for text in texts:
        if not text.startswith(shortest[:end]):
            end = _same(text, shortest, end)
    return shortest[: shortest.rfind("\n", 0, end) + 1]


def _same(text: str, other: str, most: int) -> int:
    """Return how many of the first characters are the same, ``most`` at most."""
    return bisect_left(range(1, most + 1), 1, key=lambda count: text[:count] != other[:count])


def common_rows(columns: Sequence[Sequence[Piece]], most: int) -> int:
    """Return in how many of the first rows, ``most`` at most, all columns have the same."""
    first, *others = columns
    for column in others:
        if column[:most] != first[:most]:
            most = next(at for at in range(most) if column[at] != first[at])
    return most


def aligned(columns: Sequence[Sequence[Piece]]) -> bool:
    """Return whether what two columns have in common is in the same rows of both, each time that one of them has it.

    >>> aligned(["aba", "acac"]), aligned(["ab", "ba"]), aligned(["aa", "ab"])
    (True, False, False)
    """
    different = [set(column) for column in columns]
    if len(set().union(*different)) == sum(map(len, different)):
        return True
    # Of each line: in how many rows it is, times in how many columns. If each of these has it in each of those rows,
    # the sum of all lines is the number of all places; otherwise it is greater.
    rows = Counter(map(_of_row, set(chain.from_iterable(map(enumerate, columns)))))
    of_columns = Counter(chain.from_iterable(different))
    return sum(count * of_columns[line] for line, count in rows.items()) == sum(map(len, columns))


def rows_of(ranks: Sequence[int], columns: Sequence[Sequence[Piece]], *, fold: bool) -> list[tuple[Ranks, Line]]:
    """Return the lines of all rows, each with the ranks that have it there: in a row, the lowest rank's first.

    Args:
        ranks: the rank of each column.
        columns: lines, equally many of each rank.
        fold: whether equal lines of a row are one.
    """
    alone: list[Ranks] = [(rank,) for rank in ranks]
    together = tuple(ranks)
    rows = cast("zip[tuple[Line, ...]]", zip(*columns, strict=True))
    if not fold or len(ranks) == 1:
        return [*chain.from_iterable(zip(alone, row, strict=True) for row in rows)]
    found: list[tuple[Ranks, Line]] = []
    for row in rows:
        count = len(set(row))
        if count == len(row):
            found += zip(alone, row, strict=True)
        elif count == 1:
            found.append((together, row[0]))
        else:
            of_line: dict[Line, list[int]] = {}
            for rank, line in zip(ranks, row, strict=True):
                of_line.setdefault(line, []).append(rank)
            found += ((tuple(those), line) for line, those in of_line.items())
    return found


def same_rows(ranks: Ranks, lines: Sequence[Piece]) -> list[tuple[Ranks, Line]]:
    """Return lines that all of these ranks have."""
    return [*zip(repeat(ranks), cast("Sequence[Line]", lines), strict=False)]
