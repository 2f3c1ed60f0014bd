"""Rows of lines, one of each rank, compared many at once: at the speed of sets and lists, and not line by line."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import cast

from ..display.displays import prefixed, prefixed_block
from ..display.items import FoldedBlock, FoldedLines, FoldedRows, Line, Piece

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
    # Of each line: in how many rows it is, times in how many columns. If each of these has it in each of those rows,
    # the sum of all lines is the number of all places; otherwise it is greater.
    rows = Counter(map(_of_row, set(chain.from_iterable(map(enumerate, columns)))))
    of_columns = Counter(chain.from_iterable(map(set, columns)))
    return sum(count * of_columns[line] for line, count in rows.items()) == sum(map(len, columns))


def are_disjoint(columns: Sequence[Sequence[Piece]]) -> bool:
    """Return whether no two columns have anything in common."""
    different = [set(column) for column in columns]
    return len(set().union(*different)) == sum(map(len, different))


def folded_rows(ranks: Sequence[int], columns: Sequence[Sequence[Piece]]) -> FoldedLines:
    """Return the lines of all rows; equal lines of a row are one. The lowest rank's line is a row's first.

    Args:
        ranks: the rank of each column.
        columns: lines, equally many of each rank.
    """
    alone: list[Ranks] = [(rank,) for rank in ranks]
    together = tuple(ranks)
    found: list[tuple[Ranks, Line]] = []
    for row in cast("zip[tuple[Line, ...]]", zip(*columns, strict=True)):
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
    return FoldedLines(found)


def rows_of(ranks: Sequence[Ranks], columns: Sequence[Sequence[Piece]]) -> FoldedRows:
    """Return the lines of all rows, each for itself."""
    return FoldedRows(ranks, cast("Sequence[Sequence[Line]]", columns))


def texts_of(rows: FoldedBlock | FoldedLines | FoldedRows, prefix: Callable[[Ranks], str]) -> Iterator[tuple[str, str]]:
    """Yield lines as they are shown, after the prefixes of their ranks: a stream, and a text of whole lines."""
    if isinstance(rows, FoldedBlock):
        yield rows.block.stream, prefixed_block(prefix(rows.ranks), rows.block.text)
        return
    streams = {line.stream for column in rows.columns for line in column} if isinstance(rows, FoldedRows) else set()
    if isinstance(rows, FoldedRows) and len(streams) == 1:
        shown = [_shown(prefix(ranks), column) for ranks, column in zip(rows.ranks, rows.columns, strict=True)]
        yield streams.pop(), "".join(chain.from_iterable(zip(*shown, strict=True)))
        return
    for stream, some in groupby(rows.lines(), lambda entry: entry[1].stream):
        yield stream, "".join([prefixed(prefix(ranks), line.text) for ranks, line in some])


def _shown(prefix: str, column: Sequence[Line]) -> list[str]:
    return [f"{prefix} {text}\n" if text else f"{prefix}\n" for _, text in column]
