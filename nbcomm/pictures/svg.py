"""A plan as SVG: a lane for each rank, with before on the left, after on the right, and what moves between them.

The picture must be readable wherever a notebook is shown, so it uses attributes only: sites that show notebooks strip
styles and scripts. It has its own ground for the same reason. As a file or an image it may have one style sheet, which
gives every attribute's colour its counterpart on a dark ground. A colour shows whose data it is, and so does a digit,
for readers who cannot distinguish the colours.
"""

from __future__ import annotations

from .canvas import Canvas
from .description import describe
from .elements import LINE, PAD, SANS, page_wide
from .lanes import Barrier, LaneLayout
from .layout import MOST_CURVES, MOST_LANES, MOST_LINES, WIDEST, Layout
from .matrix import Matrix
from .plan import Plan

_LONGEST, _SHORTEST = 26, 5
"""The most characters in a cell, and the fewest in lanes."""

_TALL = 30
"""Pixels of a cell's height in lanes."""


def draw(plan: Plan, *, themed: bool = False) -> str:
    """Draw a plan as SVG.

    Args:
        plan: the plan to draw.
        themed: add a style sheet for a dark ground. For a file or an image only: within a page it would apply to the
            whole page, and follow the browser's colours where the notebook has its own.

    Returns:
        An ``<svg>`` element with a title and a description in words.
    """
    layout = _layout(plan)
    canvas, wide = layout.canvas, page_wide(layout.wide, plan.title, [plan.law, *plan.notes])
    for place, rank in enumerate(plan.ranks):
        canvas.write(PAD, layout.middle(place) + 5, f"rank {rank}", font=SANS)
        if place and layout.ruled:
            y = layout.middle(place) - layout.step / 2
            canvas.line(f"M{PAD} {y:.1f}H{wide - PAD:.1f}", LINE, 0.6)
    layout.draw(wide)
    return canvas.page(wide, layout.bottom + 4, plan.title, describe(plan), plan.notes, law=plan.law, themed=themed)


def _layout(plan: Plan) -> Layout:
    """Choose lanes, with as much of each value as fits, or a matrix if there are too many ranks or lines to follow."""
    if plan.name == "barrier":
        return Barrier(Canvas(plan, _LONGEST, _TALL))
    most = MOST_CURVES if plan.name == "scan" else MOST_LINES
    if len(plan.ranks) <= MOST_LANES and (plan.hub or len(plan.flows) <= most):
        for longest in range(_LONGEST, _SHORTEST - 1, -1):
            lanes = LaneLayout(Canvas(plan, longest, _TALL))
            if lanes.wide <= WIDEST:
                return lanes
    return Matrix(plan)
