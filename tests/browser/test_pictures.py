"""The pictures as a browser shows them: in the notebook's theme, whatever the browser's own is, and large enough."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from PIL import Image

from .conftest import Notebook, Server

DRAW = "import nbcomm\nnbcomm.draw('reduce_scatter')"
DENSE = 3
"""Pixels of the screen for one of the page, so that thin strokes have their full colour."""

Make = Callable[..., Notebook]


@pytest.fixture
def theme(request: pytest.FixtureRequest, server: Server) -> Iterator[str]:
    """A theme of JupyterLab's, and light again for the other tests."""
    server.choose_theme(request.param)
    yield request.param
    server.choose_theme("light")


def luminance(colour: tuple[int, ...]) -> float:
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in (part / 255 for part in colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def seen(picture: Any) -> tuple[tuple[int, ...], dict[str, float]]:
    """The ground of a picture, and the contrast of each of its texts, by the pixels on the screen."""
    picture.scroll_into_view_if_needed()
    shot = Image.open(io.BytesIO(picture.screenshot())).convert("RGB")
    drawn = ET.fromstring(picture.evaluate("img => fetch(img.src).then((answer) => answer.text())"))  # noqa: S314
    scale = shot.width / float(drawn.get("width", "0"))
    found = {}
    for text in drawn.iter("{http://www.w3.org/2000/svg}text"):
        x, y, size = (float(text.get(key, "0")) for key in ("x", "y", "font-size"))
        words = text.text or ""
        wide = len(words) * size * (0.5 if "mono" not in text.get("font-family", "") else 0.6)
        x -= wide / 2 if text.get("text-anchor") == "middle" else 0
        box = [part * scale for part in (x, y - 0.75 * size, x + wide, y)]
        pixels = [colour for _, colour in sorted(shot.crop(tuple(map(round, box))).getcolors(1 << 24))]
        ground = pixels[-1]
        found[f"{words} at {x:.0f}, {y:.0f}"] = max(contrast(ground, pixel) for pixel in pixels)
    return shot.getpixel((int(30 * scale), int(36 * scale))), found


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("app", "theme"), [("lab", "dark"), ("notebook", "dark"), ("lab", "light")], indirect=["theme"]
)
def test_a_picture_has_the_theme_of_the_notebook_whatever_the_browser_prefers(
    notebook: Make, app: str, theme: str
) -> None:
    book = notebook(f"picture-{app}-{theme}.ipynb", DRAW, device_scale_factor=DENSE)
    book.open(app=app)
    book.run(0)
    picture = book.page.locator("img[alt^='reduce_scatter']")
    picture.wait_for()
    for scheme in ("light", "dark"):
        book.page.emulate_media(color_scheme=scheme)
        book.page.wait_for_function("s => matchMedia(`(prefers-color-scheme: ${s})`).matches", arg=scheme)
        ground, texts = seen(picture)
        assert (luminance(ground) < 0.05) == (theme == "dark"), (scheme, ground)
        assert len(texts) > 30
        assert {text: ratio for text, ratio in texts.items() if ratio < 4.5} == {}, scheme
    # In the page itself, too: a theme is changed while the picture is there.
    book.page.evaluate("now => { document.body.dataset.jpThemeLight = now }", f"{theme == 'dark'}".lower())
    assert (luminance(seen(picture)[0]) > 0.05) == (theme == "dark")
    assert book.errors == []


@pytest.mark.timeout(60)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    ("page", "dark"),
    [
        ('<body class="vscode-dark">', True),
        ('<body class="vscode-light">', False),
        ('<html theme="dark"><body>', True),  # Colab
        ('<html data-theme="light"><body>', False),  # Sphinx
        ('<html style="color-scheme: dark"><body>', True),  # whatever a site says of itself
    ],
)
def test_other_pages_that_tell_their_theme_have_it_too(browser: Any, page: str, dark: bool, scheme: str) -> None:
    import nbcomm

    context = browser.new_context(color_scheme=scheme, device_scale_factor=DENSE)
    try:
        shown = context.new_page()
        html = nbcomm.draw("scan").bundle["text/html"]
        if "color-scheme" in page:  # a site that strips styles
            html = re.sub("<style>.*?</style>", "", html)
        shown.set_content(page + html)
        ground, texts = seen(shown.locator("img"))
        assert (luminance(ground) < 0.05) == dark
        assert min(texts.values()) >= 4.5
    finally:
        context.close()
