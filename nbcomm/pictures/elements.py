"""The elements of every picture and chart: colours, boxes, lines and texts.

Elements have attributes only, and each colour has one use, so that a style sheet can select it by its value.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
"""Okabe and Ito's colours, which differ for every kind of colour vision; from the ninth rank on they repeat."""

ON = ("#FFFFFF", *["#000000"] * 7)
"""The text colour on each of them, with a contrast of 4.5:1 or more."""

_VIOLET, _OLIVE, _ROSE, _PETROL, _BROWN, _PLUM = "#7A62B3", "#8A8A2E", "#CC6677", "#3E8E93", "#94703F", "#A0509B"
LOOKS = {
    "compute": (_VIOLET, ""),
    "waiting": (_OLIVE, "/"),
    "transfer": (_ROSE, ":"),
    "compute during transfer": (_VIOLET, "|"),
    "forward": (_PLUM, ""),
    "backward": (_PETROL, "/"),
    "forward and backward": (_PLUM, "x"),
    "weights": (_PETROL, ""),
    "gradients": (_BROWN, "/"),
    "optimizer": (_PLUM, ":"),
    "buffers": (_PETROL, "|"),
    "activations": (_OLIVE, "\\"),
    "other tensors": (_BROWN, "x"),
}
"""The colour of each kind of time and of memory, none of them a rank's, and its pattern: no two in one chart share it.
Those of time are the panel's (panel.css)."""

MARK = "#FFFFFF"
"""A pattern's colour, with a contrast of 3:1 or more to each of them."""

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

_DOTS, _STRIPES = 6, 8
"""Pixels from one mark of a pattern to the next."""

WORDS = 7.4
"""Pixels of the width of such a character in a sentence."""

LEAST, PAD, _LINE = 420, 16, 20
"""The least width of a picture, its margin, and the height of a line of words, in pixels."""

_STYLE = (
    "<style>@media (prefers-color-scheme: dark) {"
    + "".join(f'[fill="{light}"]{{fill:{dark}}}[stroke="{light}"]{{stroke:{dark}}}' for light, dark in DARK.items())
    + "}</style>"
)
"""The style sheet for a dark ground; in an image it follows the ``color-scheme`` of the ``<img>`` that shows it."""

_NO_XML = re.compile(r"[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Elements:
    """The parts of a picture so far.

    Attributes:
        parts: the elements.
    """

    def __init__(self) -> None:
        self.parts: list[str] = []

    def page(  # noqa: PLR0913 - what a picture has
        self, wide: float, bottom: float, title: str, words: str, notes: Sequence[str], *, law: str = "", themed: bool
    ) -> str:
        """Return the picture of these parts: with its title above them, and its law and notes below ``bottom``."""
        parts, lines = Elements(), [*filter(None, [law]), *notes]
        tall = round(bottom) + 18 + _LINE * len(lines)
        parts.rect(0.5, 0.5, round(wide) - 1, tall - 1, GROUND, rx=8, stroke=LINE)
        parts.write(PAD, 30, title, size=18, weight="600", font=SANS)
        parts.parts += self.parts
        for number, line in enumerate(lines):
            ink = INK if line is law else QUIET
            parts.write(PAD, bottom + 22 + _LINE * number, line, fill=ink, font=SANS)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{wide:.0f}" height="{tall}" '
            f'viewBox="0 0 {wide:.0f} {tall}"><title>{xml(title)}</title><desc>{xml(words)}</desc>'
            f"{_STYLE if themed else ''}{''.join(parts.parts)}</svg>"
        )

    def owned(  # noqa: PLR0913 - what a box has
        self, x: float, y: float, wide: float, tall: float, owners: Sequence[int], *, text: str = "", rx: float = 3
    ) -> None:
        """Add a box in the colour of its owner, or with a stripe for each rank if several own it; and a text in it."""
        if len(owners) <= 1:
            self.rect(x, y, wide, tall, colour(owners[0]) if owners else LINE, rx=rx)
            ink = on(owners[0]) if owners else INK
            self.write(x + wide / 2, y + tall / 2 + 5, text, fill=ink, anchor="middle")
            return
        each = tall / len(owners)
        for number, rank in enumerate(owners):
            self.rect(x, y + number * each, wide, each + 0.2, colour(rank))
        self.plated(x + wide / 2, y + tall / 2, text)

    def plated(self, x: float, y: float, text: str, font: str = MONO) -> None:
        """Add a text around a point, on a plate that parts it from what is below."""
        if not text:
            return
        wide = len(text) * (CHAR if font == MONO else WORDS) + 6
        self.rect(x - wide / 2, y - 10, wide, 20, PLATE, rx=3)
        self.write(x, y + 5, text, anchor="middle", font=font)

    def piece(self, x: float, y: float, wide: float, tall: float, kind: str) -> None:
        """Add a box of one of `LOOKS`. Its pattern is made of lines, as a page may strip whatever is referred to."""
        fill, pattern = LOOKS[kind]
        self.rect(x, y, wide, tall, fill)
        if pattern == ":":
            for at in _steps(tall, _DOTS):
                way = f"M{x + min(wide, _DOTS) / 2:.1f} {y + at:.1f}H{x + wide - 1:.1f}"
                self.line(way, MARK, 2, dashes=f"0.01 {_DOTS}", cap="round")
        elif pattern == "|":
            self.line(f"M{x + 2:.1f} {y + tall / 2:.1f}H{x + wide:.1f}", MARK, tall, dashes="2 4")
        elif pattern:
            ways = [(at, max(0.0, at - tall), min(wide, at)) for at in _steps(wide + tall, _STRIPES)]
            rising = [f"M{x + a:.1f} {y + at - a:.1f}L{x + b:.1f} {y + at - b:.1f}" for at, a, b in ways]
            falling = [f"M{x + a:.1f} {y + tall - at + a:.1f}L{x + b:.1f} {y + tall - at + b:.1f}" for at, a, b in ways]
            self.line("".join(rising * (pattern in "/x") + falling * (pattern in "\\x")), MARK, 1.5)

    def legend(self, x: float, y: float, kinds: Sequence[str]) -> float:
        """Name kinds in a line, each beside a piece of it; return where the line ends."""
        for kind in kinds:
            self.piece(x, y - 11, 22, 14, kind)
            self.write(x + 28, y + 1, kind, fill=QUIET, font=SANS)
            x += 28 + wide_of([kind]) + 18
        return x

    def axis(self, x: float, wide: float, y: float, ticks: Sequence[tuple[float, str]]) -> None:
        """Draw a horizontal axis; a tick has its place, from 0 to 1, and its text."""
        self.line(f"M{x:.1f} {y:.1f}H{x + wide:.1f}", QUIET, 1)
        for part, text in ticks:
            at = x + part * wide
            self.line(f"M{at:.1f} {y:.1f}v5", QUIET, 1)
            self.write(at, y + 20, text, fill=QUIET, anchor="middle", font=SANS)

    def rect(self, x: float, y: float, wide: float, tall: float, fill: str, *, rx: float = 0, stroke: str = "") -> None:  # noqa: PLR0913
        """Add a box."""
        more = (f' rx="{rx:g}"' if rx else "") + (f' stroke="{stroke}"' if stroke else "")
        self.add(f'<rect x="{x:.1f}" y="{y:.2f}" width="{wide:.1f}" height="{tall:.2f}"{more} fill="{fill}"/>')

    def line(self, way: str, stroke: str, width: float, *, dashes: str = "", cap: str = "") -> None:
        """Add a line along an SVG path."""
        more = (f' stroke-dasharray="{dashes}"' if dashes else "") + (f' stroke-linecap="{cap}"' if cap else "")
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
        """Add a text, if there is one."""
        if not text:
            return
        self.add(
            f'<text x="{x:.1f}" y="{y:.1f}" font-family="{font}" font-size="{size}" font-weight="{weight}" '
            f'text-anchor="{anchor}" fill="{fill}">{xml(text)}</text>'
        )

    def add(self, part: str) -> None:
        """Add an element."""
        self.parts.append(part)


def wide_of(texts: Sequence[str], least: float = 0.0) -> float:
    """Return the pixels that the longest of some texts needs."""
    return max([least, *(len(text) * WORDS for text in texts)])


def page_wide(body: float, title: str, lines: Sequence[str]) -> float:
    """Return the pixels of a picture's width, with room for its body, its title, and the lines below."""
    return max(LEAST, body, wide_of(lines, len(title) * WORDS * 18 / TEXT) + 2 * PAD)


def _steps(until: float, each: float) -> list[float]:
    """Return marks at equal distances within a length: the middle of a short one."""
    return [(number + 0.5) * each for number in range(int(until / each + 0.5))] or [until / 2]


def xml(text: str) -> str:
    """Escape a text for XML, and replace characters that XML does not allow: a cell's line may contain any."""
    return escape(_NO_XML.sub("\N{REPLACEMENT CHARACTER}", text))


def colour(rank: int) -> str:
    """Return a rank's colour."""
    return COLOURS[rank % len(COLOURS)]


def on(rank: int) -> str:
    """Return the text colour on a rank's colour."""
    return ON[rank % len(COLOURS)]


def width_of(drawn: str) -> float:
    """Return the width in pixels of a picture of `Elements.page`."""
    return float(drawn.partition(' width="')[2].partition('"')[0])
