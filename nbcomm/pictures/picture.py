"""A plan as a notebook shows it: a picture where there is room for one, words everywhere else."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from typing import Any

from . import svg
from .canvas import SMALLEST
from .description import describe
from .plan import Plan, plan

_DARK = '[data-jp-theme-light="false"],.vscode-dark,.vscode-high-contrast,[theme="dark"],[data-theme="dark"]'
_LIGHT = '[data-jp-theme-light="true"],.vscode-light,.vscode-high-contrast-light,[theme="light"],[data-theme="light"]'
_THEMES = f":is({_DARK}) .nbcomm-picture{{color-scheme:dark}}:is({_LIGHT}) .nbcomm-picture{{color-scheme:light}}"
"""How a page tells its theme: JupyterLab, Notebook 7 and nbconvert; VS Code; Colab; Sphinx. An image follows the scheme
that is set for it, not the browser's; where styles are stripped, that of the page or the browser holds."""

_LEAST = 10
"""Pixels of the smallest text where a picture is made smaller; where it is too wide then, the notebook scrolls it."""


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
        with its words beside it, light or dark as the page is. It is one image: where styles are stripped from a
        notebook of somebody else's, two would be seen.
        """
        drawn, words = svg.draw(self.plan, themed=True), describe(self.plan)
        encoded = base64.b64encode(drawn.encode()).decode()
        # A notebook makes a picture as narrow as it is itself: not so narrow that nobody can read it.
        least = f"{svg.width_of(drawn) * _LEAST / SMALLEST:.0f}"
        style = f"<style>{_THEMES}.nbcomm-least-{least}{{min-width:{least}px}}</style>"
        names = f"nbcomm-picture nbcomm-least-{least}"
        image = f'<img class="{names}" alt="{html.escape(words)}" src="data:image/svg+xml;base64,{encoded}"/>'
        return {"text/html": style + image, "image/svg+xml": self.svg, "text/plain": words}


def draw(name: str, values: Sequence[Any] | None = None, **how: Any) -> Picture:
    """Draw a collective of given values; see `nbcomm.draw`."""
    return Picture(plan(name, values, **how))
