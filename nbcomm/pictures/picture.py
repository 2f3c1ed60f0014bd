"""A plan, or a chart, as a notebook shows it: as a picture if the front end can show one, else in words."""

from __future__ import annotations

import base64
import functools
import html
import math
from collections.abc import Sequence
from typing import Any, Final

from ..annotations import as_written
from . import svg
from .description import describe
from .elements import SANS, TEXT, width_of
from .plan import Plan, plan

_DARK = '[data-jp-theme-light="false"],.vscode-dark,.vscode-high-contrast,[theme="dark"],[data-theme="dark"]'
_LIGHT = '[data-jp-theme-light="true"],.vscode-light,.vscode-high-contrast-light,[theme="light"],[data-theme="light"]'
_THEMES = f":is({_DARK}) .nbcomm-picture{{color-scheme:dark}}:is({_LIGHT}) .nbcomm-picture{{color-scheme:light}}"
"""How a page marks its theme: JupyterLab, Notebook 7 and nbconvert; VS Code; Colab; Sphinx. An image follows the scheme
that is set for it, not the browser's; if styles are stripped, the scheme of the page or the browser applies."""

_LEAST = 10
"""Pixels of the smallest text in a picture that is made smaller; if it is still too wide, the notebook scrolls it."""

_ZOOM = 3
"""Pixels of a PNG per pixel of its picture: enough for paper without grey edges, which would double its bytes."""


class Shown:
    """What a notebook shows as a picture, and ``print`` in words."""

    def _words(self) -> str:
        """Return what it shows, in words."""
        raise NotImplementedError

    def _drawn(self, *, themed: bool) -> str:
        """Return it as an ``<svg>`` element.

        Args:
            themed: with a style sheet for a dark ground. For a file or an image only: within a page it would apply to
                the whole page, and follow the browser's colours where the notebook has its own.
        """
        raise NotImplementedError

    def __repr__(self) -> str:
        return self._words()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return self.bundle

    @property
    def svg(self) -> str:
        """The picture as a self-contained ``<svg>`` element."""
        return self._drawn(themed=False)

    @property
    def themed(self) -> str:
        """The picture as a file, which is light or dark as the page that shows it."""
        return self._drawn(themed=True)

    @property
    def bundle(self) -> dict[str, str]:
        """The picture as a MIME bundle.

        Front ends show SVG as an image without alternative text, so the preferred format here is HTML: an image with
        its description as alternative text, light or dark like the page. It is a single image: if a page strips the
        styles, as from an untrusted notebook, two images would both be seen.

        A PDF takes the PNG. There is no SVG by itself: nbconvert has each converted by Inkscape, which few have.
        """
        drawn, words = self.themed, self._words()
        encoded = base64.b64encode(drawn.encode()).decode()
        # A notebook shrinks a picture to its own width; the minimum keeps the text readable.
        least = math.ceil(width_of(drawn) * _LEAST / TEXT)
        style = f"<style>{_THEMES}.nbcomm-least-{least}{{min-width:{least}px}}</style>"
        names = f"nbcomm-picture nbcomm-least-{least}"
        image = f'<img class="{names}" alt="{html.escape(words)}" src="data:image/svg+xml;base64,{encoded}"/>'
        return {"text/html": style + image, **self.png, "text/plain": words}

    @property
    def png(self) -> dict[str, str]:
        """The picture as PNG in a MIME bundle; an empty bundle where this machine can draw none with its texts."""
        return {"image/png": base64.b64encode(_rastered(self.svg)).decode()} if _has_fonts() else {}


@as_written
class Picture(Shown):
    """A picture of one collective. A notebook shows it as the result of a cell; ``print`` writes it in words.

    Attributes:
        plan: the plan that it shows.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def _words(self) -> str:
        return describe(self.plan)

    def _drawn(self, *, themed: bool) -> str:
        return svg.draw(self.plan, themed=themed)


def _rastered(drawn: str) -> bytes:
    import resvg_py  # here, for a kernel that draws nothing needs none of it

    sharp: Final = "optimize_speed"
    return resvg_py.svg_to_bytes(svg_string=drawn, zoom=_ZOOM, shape_rendering=sharp, text_rendering=sharp)


@functools.cache
def _has_fonts() -> bool:
    """Return whether a PNG can be drawn here, with its texts: a bare container has no font."""
    empty = '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20">{}</svg>'
    letter = f'<text y="15" font-family="{SANS}">M</text>'
    try:
        return _rastered(empty.format("")) != _rastered(empty.format(letter))
    except (ImportError, ValueError):
        return False


def draw(name: str, values: Sequence[Any] | None = None, **how: Any) -> Picture:
    """Draw a collective of given values; see `nbcomm.draw`."""
    return Picture(plan(name, values, **how))
