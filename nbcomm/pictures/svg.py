"""A plan as SVG: lanes are ranks, before on the left, after on the right, and between them what moves.

The picture must be readable wherever a notebook is read, so it is made of attributes alone: sites that show notebooks
strip styles and scripts. It brings its own ground for the same reason. As a file or an image it may have one style
sheet, which gives every attribute's colour its counterpart on a dark ground. Colour says whose data it is, and so does
a digit, for whoever cannot tell the colours.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ..sketch import fitted
from .plan import Cell, Plan
from .words import describe

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
"""Okabe and Ito's, which people with any kind of colour vision can tell apart; from the ninth rank on they repeat."""

_ON = ("#FFFFFF", *["#000000"] * 7)
"""What is written on them: 4.5:1 or more."""

_INK, _QUIET, _LINE, _GROUND, _PLATE, _HUB = "#1F2328", "#59636E", "#D1D9E0", "#FFFFFE", "#FEFFFF", "#32383F"
DARK = {_INK: "#F0F3F6", _QUIET: "#B1BAC4", _LINE: "#3D444D", _GROUND: "#16181B", _PLATE: "#24282D"}
"""Each colour on a light ground, and the one on a dark ground. A colour has one use, so that it can be found by its
value: a ground and a plate are not quite white, what is written on a rank's colour is. The rest stays as it is."""

_FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace"
_SANS = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, DejaVu Sans, sans-serif"
_CHAR = 7.3
"""Width of a character of 12 px in the widest of these fonts."""

_TOP, _LABEL, _PAD = 62, 66, 16
_BAND = 17
_LONGEST = 26
"""Characters in a cell; with many cells in a lane it is fewer."""

_STYLE = (
    "<style>@media (prefers-color-scheme: dark) {"
    + "".join(f'[fill="{light}"]{{fill:{dark}}}[stroke="{light}"]{{stroke:{dark}}}' for light, dark in DARK.items())
    + "}</style>"
)
"""In an image it follows the ``color-scheme`` of the ``<img>`` that shows it."""


def draw(plan: Plan, *, themed: bool = False) -> str:
    """Draw a plan.

    Args:
        plan: what to draw.
        themed: with a style sheet for a dark ground. For a file and an image only: within a page it would hold for
            the page, and ask for the browser's colours where the notebook has its own.

    Returns:
        An ``<svg>`` element with a title and a description in words.
    """
    return _Picture(plan, _STYLE if themed else "").text()


class _Picture:
    def __init__(self, plan: Plan, style: str) -> None:
        self.plan, self.style = plan, style
        n = len(plan.ranks)
        self.step = 36 if n <= 8 else 29
        self.tall = self.step - 10
        cells = max((len(row) for rows in (plan.before, plan.after) for row in rows.values()), default=1)
        self.longest = max(4, min(_LONGEST, 64 // max(1, cells)))
        self.texts = {**self._fitted(plan.before), **self._fitted(plan.after)}
        self.left = max([self._width(row) for row in plan.before.values()] + [44.0])
        self.right = max([self._width(row) for row in plan.after.values()] + [44.0])
        self.gap = 150.0 if n <= 8 else 190.0
        self.before_x = _PAD + _LABEL
        self.after_x = self.before_x + self.left + self.gap
        lines = [plan.title, plan.law, *plan.notes]
        words = max(len(line) for line in lines) * 6.4
        self.width = max(self.after_x + self.right + _PAD, words + 2 * _PAD, 420)
        self.foot = _TOP + n * self.step + 12
        self.height = self.foot + 8 + 17 * (1 + len(plan.notes))
        self.thick = 1.7 if len(plan.flows) <= 64 else 0.8
        self.parts: list[str] = []

    def text(self) -> str:
        plan = self.plan
        title = escape(plan.title)
        self._add(
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{self.width:.0f}" height="{self.height:.0f}" '
            f'viewBox="0 0 {self.width:.0f} {self.height:.0f}">'
        )
        self._add(f"<title>{title}</title><desc>{escape(describe(plan))}</desc>{self.style}")
        self._add(
            f'<rect x="0.5" y="0.5" width="{self.width - 1:.0f}" height="{self.height - 1:.0f}" rx="8" '
            f'fill="{_GROUND}" stroke="{_LINE}"/>'
        )
        self._write(_PAD, 26, plan.title, size=15, weight="600", font=_SANS)
        self._lanes()
        if plan.name == "barrier":
            self._barrier()
        else:
            self._columns()
        self._write(_PAD, self.foot + 10, plan.law, size=12.5, font=_SANS)
        for i, note in enumerate(plan.notes):
            self._write(_PAD, self.foot + 27 + 17 * i, note, size=12, fill=_QUIET, font=_SANS)
        self._add("</svg>")
        return "".join(self.parts)

    # ── the parts ───────────────────────────────────────────────────────────────────────────────────

    def _lanes(self) -> None:
        for place, rank in enumerate(self.plan.ranks):
            middle = self._middle(place)
            self._write(_PAD, middle + 4, f"rank {rank}", size=12, fill=_INK, font=_SANS)
            if place:
                y = middle - self.step / 2
                self._add(f'<path d="M{_PAD} {y:.1f}H{self.width - _PAD:.1f}" stroke="{_LINE}" stroke-width="0.6"/>')

    def _columns(self) -> None:
        plan = self.plan
        self._write(self.before_x, 50, "before", size=11.5, fill=_QUIET, font=_SANS)
        self._write(self.after_x, 50, "after", size=11.5, fill=_QUIET, font=_SANS)
        self._flows()
        for place, rank in enumerate(plan.ranks):
            self._row(self.before_x, place, plan.before.get(rank, ()), "")
            nothing = "never came" if rank in plan.missing else "–"
            self._row(self.after_x, place, plan.after.get(rank, ()), nothing)

    def _flows(self) -> None:
        plan, places = self.plan, {rank: place for place, rank in enumerate(self.plan.ranks)}
        if plan.hub:
            x = self.before_x + self.left + self.gap / 2
            y = _TOP + len(plan.ranks) * self.step / 2
            for rank in [rank for rank in plan.ranks if plan.before.get(rank)]:  # also where it never completed
                start = self._end_of(self.before_x, plan.before[rank])
                self._curve(start, self._middle(places[rank]), x, y, _colour(rank), arrow=False)
            for rank in dict.fromkeys(flow.dst for flow in plan.flows):
                self._curve(x, y, self.after_x - 3, self._middle(places[rank]), _QUIET, arrow=True)
            wide = max(34.0, len(plan.hub) * _CHAR + 16)
            self._add(
                f'<rect x="{x - wide / 2:.1f}" y="{y - 13:.1f}" width="{wide:.1f}" height="26" rx="13" fill="{_HUB}"/>'
            )
            self._write(x, y + 4, plan.hub, size=12, fill="#FFFFFF", anchor="middle", weight="600")
            return
        for flow in plan.flows:
            start_y = self._port(places[flow.src], flow.item, len(plan.before[flow.src]))
            end_y = self._port(places[flow.dst], flow.place, len(plan.after[flow.dst]))
            if plan.name in ("scan", "reduce_scatter"):  # many into one cell
                end_y = self._port(places[flow.dst], places[flow.src], len(plan.ranks))
            start = self._end_of(self.before_x, plan.before[flow.src])
            self._curve(start, start_y, self.after_x - 3, end_y, _colour(flow.src), arrow=True)

    def _row(self, x: float, place: int, cells: Sequence[Cell], nothing: str) -> None:
        y = self._middle(place) - self.tall / 2
        if not cells:
            self._write(x + 4, self._middle(place) + 4, nothing, size=12, fill=_QUIET)
        for cell in cells:
            text = self._shown(cell)
            wide = self._cell_width(cell)
            self._frame(x, y, wide, cell.sources)
            plate = wide - _BAND - 3
            self._add(
                f'<rect x="{x + _BAND:.1f}" y="{y + 3:.1f}" width="{plate:.1f}" height="{self.tall - 6:.1f}" rx="3" '
                f'fill="{_PLATE}"/>'
            )
            self._write(x + _BAND + plate / 2, self._middle(place) + 4, text, size=12, anchor="middle")
            if len(cell.sources) == 1:
                rank = cell.sources[0]
                self._write(
                    x + _BAND / 2, self._middle(place) + 3.5, str(rank), size=10, fill=_on(rank), anchor="middle"
                )
            x += wide + 4

    def _frame(self, x: float, y: float, wide: float, sources: Sequence[int]) -> None:
        """The frame of a cell, in the colours of those whose data is in it: side by side in stripes if several."""
        if len(sources) <= 1:
            fill = _colour(sources[0]) if sources else _LINE
            self._add(f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{self.tall}" rx="5" fill="{fill}"/>')
            return
        each = self.tall / len(sources)
        for i, rank in enumerate(sources):
            self._add(
                f'<rect x="{x:.1f}" y="{y + i * each:.2f}" width="{wide:.1f}" height="{each + 0.3:.2f}" '
                f'fill="{_colour(rank)}"/>'
            )

    def _barrier(self) -> None:
        """Bars up to where each rank came, dashes while it waits, and the line where all go on."""
        plan = self.plan
        arrivals = {rank: plan.arrivals.get(rank, 0.0) for rank in plan.ranks}
        last = max(arrivals.values()) or 1.0
        x, wide = self.before_x, self.width - self.before_x - _PAD - 90
        release = x + wide
        for place, rank in enumerate(plan.ranks):
            y = self._middle(place)
            if rank in plan.missing:
                self._write(x + 4, y + 4, "never came", size=12, fill=_QUIET)
                continue
            came = x + max(3.0, wide * arrivals[rank] / last)
            self._add(
                f'<rect x="{x}" y="{y - 6:.1f}" width="{came - x:.1f}" height="12" rx="3" fill="{_colour(rank)}"/>'
            )
            if came < release - 1:
                self._add(
                    f'<path d="M{came:.1f} {y:.1f}H{release:.1f}" stroke="{_QUIET}" stroke-width="1.6" '
                    f'stroke-dasharray="4 4"/>'
                )
            self._write(release + 8, y + 4, f"{arrivals[rank]:.2f} s", size=12, fill=_QUIET)
        if not plan.missing:
            top, bottom = _TOP - 2, _TOP + len(plan.ranks) * self.step
            self._add(f'<path d="M{release:.1f} {top}V{bottom}" stroke="{_INK}" stroke-width="2"/>')
            self._write(release, 50, "all go on", size=11.5, fill=_QUIET, anchor="middle", font=_SANS)

    # ── places ──────────────────────────────────────────────────────────────────────────────────────

    def _middle(self, place: int) -> float:
        return _TOP + (place + 0.5) * self.step

    def _port(self, place: int, item: int, count: int) -> float:
        """Where a line leaves or enters a lane: one below the other, so that lines can be told apart."""
        spread = (self.tall - 8) / max(1, count)
        return self._middle(place) + (item - (count - 1) / 2) * spread

    def _end_of(self, x: float, cells: Sequence[Cell]) -> float:
        return x + self._width(cells) + 2

    def _width(self, cells: Sequence[Cell]) -> float:
        return sum(self._cell_width(cell) + 4 for cell in cells) - 4 if cells else 0.0

    def _cell_width(self, cell: Cell) -> float:
        return max(20.0, len(self._shown(cell)) * _CHAR + 8) + _BAND + 3

    def _shown(self, cell: Cell) -> str:
        return self.texts[id(cell)]

    def _fitted(self, rows: dict[int, tuple[Cell, ...]]) -> dict[int, str]:
        """What is shown of each cell, by its identity: of the same text it may be another part before than after."""
        cells = [cell for row in rows.values() for cell in row]
        return {id(cell): text for cell, text in zip(cells, fitted([c.text for c in cells], self.longest), strict=True)}

    # ── elements ────────────────────────────────────────────────────────────────────────────────────

    def _curve(  # noqa: PLR0913 - two points
        self, x1: float, y1: float, x2: float, y2: float, colour: str, *, arrow: bool
    ) -> None:
        bend = (x2 - x1) / 2
        end = x2 - 6 if arrow else x2
        self._add(
            f'<path d="M{x1:.1f} {y1:.1f}C{x1 + bend:.1f} {y1:.1f} {x2 - bend:.1f} {y2:.1f} {end:.1f} {y2:.1f}" '
            f'fill="none" stroke="{colour}" stroke-width="{self.thick}"/>'
        )
        if arrow:
            self._add(f'<path d="M{x2:.1f} {y2:.1f}l-7 -3.6v7.2z" fill="{colour}"/>')

    def _write(  # noqa: PLR0913 - what a text has
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float,
        fill: str = _INK,
        anchor: str = "start",
        weight: str = "400",
        font: str = _FONT,
    ) -> None:
        self._add(
            f'<text x="{x:.1f}" y="{y:.1f}" font-family="{font}" font-size="{size}" font-weight="{weight}" '
            f'text-anchor="{anchor}" fill="{fill}">{escape(text)}</text>'
        )

    def _add(self, part: str) -> None:
        self.parts.append(part)


def _colour(rank: int) -> str:
    return COLOURS[rank % len(COLOURS)]


def _on(rank: int) -> str:
    return _ON[rank % len(COLOURS)]
