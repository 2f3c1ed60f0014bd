"""The base of the layouts of a picture."""

from __future__ import annotations

from .canvas import Canvas

TOP, LABEL, PAD = 62, 66, 16
WIDEST = 900
"""The preferred largest width in pixels: a notebook shows about 800, and shrinks a wider picture."""

MOST_LANES, MOST_LINES = 8, 40
"""The most ranks, and the most lines between them, that a reader can follow."""


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

    def nothing(self, rank: int) -> str:
        """Return the text for a rank that got nothing."""
        return "absent" if rank in self.plan.missing else "–"

    def draw(self, wide: float) -> None:
        """Draw all but the names of the lanes, in a picture ``wide`` pixels wide."""
        raise NotImplementedError
