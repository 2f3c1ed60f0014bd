"""Tensors with the ranks that hold their parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from ..pictures.elements import CHAR, PAD, QUIET, SANS, Elements, wide_of
from ..rank_spec import fold
from .chart import TOP, Chart

_WIDE, _TALL = 300.0, 150.0
"""The most pixels of a tensor."""


@dataclass(frozen=True)
class Part:
    """A part of a tensor.

    Attributes:
        start: the row and the column of its first element.
        size: its rows and columns.
        ranks: those that hold it, ascending.
    """

    start: tuple[int, int]
    size: tuple[int, int]
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Whole:
    """A tensor in parts, as a matrix: a vector is one row, and of more dimensions the last ones are one.

    Attributes:
        name: "model.0.weight".
        shape: "32 × 8", as it is.
        size: its rows and columns.
        parts: what the ranks hold.
        how: how it is placed: "Shard(0) on dp".
    """

    name: str
    shape: str
    size: tuple[int, int]
    parts: tuple[Part, ...]
    how: str = ""


@dataclass(eq=False, repr=False)
class Shards(Chart):
    """Each tensor as a rectangle, whose parts have the colours of the ranks that hold them.

    Attributes:
        tensors: the tensors.
    """

    tensors: Sequence[Whole]

    def rows(self) -> list[str]:
        """Write each part as a line."""
        lines = []
        for each in self.tensors:
            lines.append(f"{each.name}, {each.shape}{', ' + each.how if each.how else ''}")
            lines.extend(
                f"  rank{'s' if len(part.ranks) > 1 else ''} {fold(part.ranks)}: rows "
                f"{_range(part.start[0], part.size[0])}, columns {_range(part.start[1], part.size[1])}"
                for part in each.parts
            )
        return lines

    def body(self, parts: Elements) -> tuple[float, float]:
        """Draw the tensors below each other."""
        y, right = float(TOP), 0.0
        largest = max((max(each.size) for each in self.tensors), default=1) or 1
        for each in self.tensors:
            head = f"{each.name}, {each.shape}{' · ' + each.how if each.how else ''}"
            parts.write(PAD, y + 4, head, fill=QUIET, font=SANS)
            right = max(right, PAD + wide_of([head]))
            least = max([len(fold(part.ranks)) * CHAR + 16 for part in each.parts], default=30.0)
            down = _places([(part.start[0], part.size[0]) for part in each.parts], _TALL / largest, 26.0)
            across = _places([(part.start[1], part.size[1]) for part in each.parts], _WIDE / largest, least)
            for part in each.parts:
                (top, x), (bottom, end) = (
                    (y + 12 + down[row], PAD + across[column])
                    for row, column in (part.start, map(sum, zip(part.start, part.size, strict=True)))
                )
                parts.owned(x, top, end - x - 1, bottom - top - 1, part.ranks, text=fold(part.ranks))
            right = max(right, PAD + max(across.values(), default=0.0))
            y += 12 + max(down.values(), default=0.0) + 26
        return right, y - 14


def _places(spans: Sequence[tuple[int, int]], scale: float, least: float) -> dict[int, float]:
    """Return the pixels at which the spans begin and end: in proportion, but where one is too thin for its text."""
    edges = sorted({edge for start, size in spans for edge in (start, start + size)})
    wide = [max(least, (end - start) * scale) for start, end in pairwise(edges)]
    return dict(zip(edges, accumulate(wide, initial=0.0), strict=True)) if edges else {}


def _range(first: int, count: int) -> str:
    return f"{first}" if count == 1 else f"{first}-{first + count - 1}" if count else "none"
