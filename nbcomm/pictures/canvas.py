"""The elements of every picture: colours, texts, and cells with a value; `svg` lays them out.

Elements have attributes only, and each colour has one use, so that a style sheet can select it by its value.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from ..short_repr import fitted
from .plan import Cell, Plan

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
"""Okabe and Ito's colours, which differ for every kind of colour vision; from the ninth rank on they repeat."""

ON = ("#FFFFFF", *["#000000"] * 7)
"""The text colour on each of them, with a contrast of 4.5:1 or more."""

INK, QUIET, LINE, GROUND, PLATE, HUB = "#1F2328", "#59636E", "#D1D9E0", "#FFFFFE", "#FEFFFF", "#32383F"
DARK = {INK: "#F0F3F6", QUIET: "#B1BAC4", LINE: "#3D444D", GROUND: "#16181B", PLATE: "#24282D"}
"""Each colour on a light ground, and its counterpart on a dark ground. Ground and plate are not quite white, because
the text on a rank's colour is white and must not change, as the colours of the ranks do not."""

MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace"
SANS = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, DejaVu Sans, sans-serif"
TEXT = 14
"""Pixels of the smallest text, for a projector's last row; `picture` prevents a page from making it smaller than 10."""

CHAR = 8.5
"""Pixels of the width of such a character in the widest of these fonts."""

WORDS = 7.4
"""Pixels of the width of such a character in a sentence."""

BAND = 20
"""Pixels of the part of a cell's frame that names the rank whose data it is."""

_NO_XML = re.compile(r"[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Canvas:
    """The parts of a picture so far.

    Attributes:
        plan: the plan that is drawn.
        longest: characters that fit into a cell.
        tall: pixels of a cell's height.
        parts: the elements.
    """

    def __init__(self, plan: Plan, longest: int, tall: float) -> None:
        self.plan, self.longest, self.tall = plan, longest, tall
        self.parts: list[str] = []
        self._texts = {**self._fitted(plan.before), **self._fitted(plan.after)}

    def _fitted(self, rows: dict[int, tuple[Cell, ...]]) -> dict[int, str]:
        """Return each cell's shortened text by its identity: equal texts may differ between before and after."""
        cells = [cell for row in rows.values() for cell in row]
        return {id(cell): text for cell, text in zip(cells, fitted([c.text for c in cells], self.longest), strict=True)}

    # ── cells ───────────────────────────────────────────────────────────────────────────────────────

    def shown(self, cell: Cell) -> str:
        """Return the text of a cell, shortened to fit."""
        return self._texts[id(cell)]

    def wide(self, cells: Sequence[Cell]) -> float:
        """Return the width of cells side by side, in pixels."""
        return sum(self.cell_wide(cell) + 4 for cell in cells) - 4 if cells else 0.0

    def cell_wide(self, cell: Cell) -> float:
        """Return the width of a cell, in pixels."""
        return max(20.0, len(self.shown(cell)) * CHAR + 8) + BAND + 3

    def row(self, x: float, middle: float, cells: Sequence[Cell], nothing: str) -> None:
        """Add cells side by side, or the text ``nothing`` if there are none."""
        y = middle - self.tall / 2
        if not cells:
            self.write(x + 4, middle + 5, nothing, fill=QUIET)
        for cell in cells:
            wide = self.cell_wide(cell)
            self._frame(x, y, wide, cell.sources)
            plate = wide - BAND - 3
            self.rect(x + BAND, y + 3, plate, self.tall - 6, PLATE, rx=3)
            self.write(x + BAND + plate / 2, middle + 5, self.shown(cell), anchor="middle")
            if len(cell.sources) == 1:
                rank = cell.sources[0]
                self.write(x + BAND / 2, middle + 5, str(rank), fill=on(rank), anchor="middle")
            x += wide + 4

    def _frame(self, x: float, y: float, wide: float, sources: Sequence[int]) -> None:
        """Add the frame of a cell, in the colours of the ranks whose data is in it: a stripe for each if several."""
        if len(sources) <= 1:
            self.rect(x, y, wide, self.tall, colour(sources[0]) if sources else LINE, rx=5)
            return
        each = self.tall / len(sources)
        for i, rank in enumerate(sources):
            self.rect(x, y + i * each, wide, each + 0.3, colour(rank))

    # ── elements ────────────────────────────────────────────────────────────────────────────────────

    def rect(self, x: float, y: float, wide: float, tall: float, fill: str, *, rx: float = 0, stroke: str = "") -> None:  # noqa: PLR0913
        """Add a box."""
        more = (f' rx="{rx:g}"' if rx else "") + (f' stroke="{stroke}"' if stroke else "")
        self.add(f'<rect x="{x:.1f}" y="{y:.2f}" width="{wide:.1f}" height="{tall:.2f}"{more} fill="{fill}"/>')

    def line(self, way: str, stroke: str, width: float, *, dashes: str = "") -> None:
        """Add a line along an SVG path."""
        more = f' stroke-dasharray="{dashes}"' if dashes else ""
        self.add(f'<path d="{way}" fill="none" stroke="{stroke}" stroke-width="{width}"{more}/>')

    def write(  # noqa: PLR0913 - what a text has
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = TEXT,
        fill: str = INK,
        anchor: str = "start",
        weight: str = "400",
        font: str = MONO,
    ) -> None:
        """Add a text."""
        self.add(
            f'<text x="{x:.1f}" y="{y:.1f}" font-family="{font}" font-size="{size}" font-weight="{weight}" '
            f'text-anchor="{anchor}" fill="{fill}">{xml(text)}</text>'
        )

    def add(self, part: str) -> None:
        """Add an element."""
        self.parts.append(part)


def xml(text: str) -> str:
    """Escape a text for XML, and replace characters that XML does not allow: a cell's line may contain any."""
    return escape(_NO_XML.sub("\N{REPLACEMENT CHARACTER}", text))


def colour(rank: int) -> str:
    """Return a rank's colour."""
    return COLOURS[rank % len(COLOURS)]


def on(rank: int) -> str:
    """Return the text colour on a rank's colour."""
    return ON[rank % len(COLOURS)]
