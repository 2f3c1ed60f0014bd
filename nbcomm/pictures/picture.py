"""A plan as a notebook shows it: a picture where there is room for one, words everywhere else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import svg
from .plan import Plan, plan
from .words import describe


class Picture:
    """A picture of one collective. A notebook shows it by itself; ``print`` writes it in words.

    Attributes:
        plan: what it shows.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def __repr__(self) -> str:
        return describe(self.plan)

    def _repr_svg_(self) -> str:
        return self.svg

    @property
    def svg(self) -> str:
        """The picture as an ``<svg>`` element; it needs nothing beside itself."""
        return svg.draw(self.plan)

    @property
    def bundle(self) -> dict[str, Any]:
        """As a MIME bundle."""
        return {"image/svg+xml": self.svg, "text/plain": describe(self.plan)}


def draw(name: str, values: Sequence[Any] | None = None, **how: Any) -> Picture:
    """Draw a collective of given values; see `nbcomm.draw`."""
    return Picture(plan(name, values, **how))
