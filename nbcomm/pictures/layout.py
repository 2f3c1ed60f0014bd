"""The base of the layouts of a picture."""

from __future__ import annotations

from .canvas import Canvas

TOP, LABEL = 72, 70
HEADS = TOP - 12
WIDEST = 1050
"""The preferred largest width in pixels: a notebook shows about 800, and shrinks a wider picture."""

MOST_LANES, MOST_LINES, MOST_CURVES = 8, 40, 16
"""The most ranks, and the most lines between them, that a reader can follow; curves are nearer to each other."""


class Layout:
    """A layout of a picture.

    Attributes:
        canvas: the canvas that it draws on.
        step: pixels from one lane to the next.
        wide: pixels that it needs.
        ruled: whether there are lines between the lanes.
    """

    ruled = True

    def __init__(self, canvas: Canvas, step: float) -> None:
        self.canvas, self.plan, self.step = canvas, canvas.plan, step
        self.wide = 0.0

    def middle(self, place: int) -> float:
        """Return the height of the middle of a lane."""
        return TOP + (place + 0.5) * self.step

    @property
    def bottom(self) -> float:
        """The height at which the lanes end."""
        return TOP + len(self.plan.ranks) * self.step

    def nothing(self, rank: int) -> str:
        """Return the text for a rank that got nothing."""
        return "absent" if rank in self.plan.missing else "–"

    def draw(self, wide: float) -> None:
        """Draw all but the names of the lanes, in a picture ``wide`` pixels wide."""
        raise NotImplementedError
