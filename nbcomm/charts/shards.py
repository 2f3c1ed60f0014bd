"""Tensors with the ranks that hold their parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
            rows, columns = (max(1, extent) for extent in each.size)
            least_wide = max([len(fold(part.ranks)) * CHAR + 16 for part in each.parts], default=30.0)
            across = len({part.start[1] for part in each.parts}) or 1
            down = len({part.start[0] for part in each.parts}) or 1
            wide = max(_WIDE * columns / largest, across * least_wide)
            tall = max(_TALL * rows / largest, down * 26.0)
            for part in each.parts:
                x, top = PAD + part.start[1] / columns * wide, y + 12 + part.start[0] / rows * tall
                size = part.size[1] / columns * wide - 1, part.size[0] / rows * tall - 1
                parts.owned(x, top, *size, part.ranks, text=fold(part.ranks))
            right = max(right, PAD + wide)
            y += 12 + tall + 26
        return right, y - 14


def _range(first: int, count: int) -> str:
    return f"{first}" if count == 1 else f"{first}-{first + count - 1}" if count else "none"
