"""What the layouts of a picture have in common: where things stand."""

from __future__ import annotations

from .canvas import Canvas

TOP, LABEL, PAD = 62, 66, 16
WIDEST = 900
"""Pixels that a picture has at most, if it can: a notebook shows about 800, and makes what is wider smaller."""

MOST_LANES, MOST_LINES = 8, 40
"""Ranks between which lines can be followed, and so many lines."""


class Layout:
    """A layout.

    Attributes:
        canvas: where it draws.
        step: pixels from one lane to the next.
        wide: pixels that it needs.
        ruled: whether there are lines between the lanes.
    """

    ruled = True

    def __init__(self, canvas: Canvas, step: float) -> None:
        self.canvas, self.plan, self.step = canvas, canvas.plan, step
        self.wide = 0.0

    def middle(self, place: int) -> float:
        """The middle of a lane."""
        return TOP + (place + 0.5) * self.step

    def nothing(self, rank: int) -> str:
        """What stands in place of what a rank did not get."""
        return "absent" if rank in self.plan.missing else "–"

    def draw(self, wide: float) -> None:
        """Draw all but the names of the lanes, in a picture that is so wide."""
        raise NotImplementedError
