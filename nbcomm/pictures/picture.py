"""A plan as a notebook shows it: a picture where there is room for one, words everywhere else."""

from __future__ import annotations

import base64
import html
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

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return self.bundle

    @property
    def svg(self) -> str:
        """The picture as an ``<svg>`` element; it needs nothing beside itself."""
        return svg.draw(self.plan)

    @property
    def bundle(self) -> dict[str, str]:
        """As a MIME bundle.

        Front ends show SVG as an image without a word for whoever cannot see it, so the image that they prefer is one
        with its words beside it.
        """
        drawn, words = self.svg, describe(self.plan)
        encoded = base64.b64encode(drawn.encode()).decode()
        image = f'<img alt="{html.escape(words)}" src="data:image/svg+xml;base64,{encoded}"/>'
        return {"text/html": image, "image/svg+xml": drawn, "text/plain": words}


def draw(name: str, values: Sequence[Any] | None = None, **how: Any) -> Picture:
    """Draw a collective of given values; see `nbcomm.draw`."""
    return Picture(plan(name, values, **how))
