"""The pictures as a browser shows them: in the notebook's theme, whatever the browser's own is, and large enough."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from PIL import Image

from nbcomm.pictures.picture import Picture
from nbcomm.pictures.plan import NAMES, plan
from nbcomm.pictures.svg import draw

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
        part = shot.crop(tuple(map(round, box)))
        # With room for no more colours than it has pixels: Pillow clears all of it each time.
        pixels = [colour for _, colour in sorted(part.getcolors(part.width * part.height))]
        ground = pixels[-1]
        found[f"{words} at {x:.0f}, {y:.0f}"] = max(contrast(ground, pixel) for pixel in pixels)
    return shot.getpixel((int(30 * scale), int(36 * scale))), found


@pytest.mark.timeout(180)
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("app", "theme"),
    [("lab", "dark"), ("notebook", "dark"), ("lab", "light")],
    indirect=["theme"],
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


@pytest.mark.timeout(180)
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


LONG = "a text that is so long that it is shortened"
OF_ONE = ("all_gather", "gather", "broadcast")
GALLERY = {
    **{f"{name} on {n}": plan(name, n=n) for name in NAMES for n in (2, 4, 7, 8, 9, 16, 64)},
    **{
        f"long {name} on {n}": plan(name, [LONG] * n) for name in ("all_gather", "gather", "broadcast") for n in (4, 16)
    },
    **{f"long all_to_all on {n}": plan("all_to_all", [[LONG] * n] * n) for n in (4, 8, 16)},
    "a group": plan("all_gather", [1] * 12, ranks=range(90, 102)),
    "a hang": replace(plan("all_reduce", n=12), flows=(), after=dict.fromkeys(range(12), ()), missing=(3,)),
}
# Of each text: its box, size and words. A rank's digit and its value are neighbours; so are the letters of one word.
BOXES = """() => [...document.querySelectorAll("svg")].map((svg) => {
  const frame = svg.getBoundingClientRect();
  return [...svg.querySelectorAll("text")].map((text) => {
    const box = text.getBBox();
    return {words: text.textContent, size: parseFloat(text.getAttribute("font-size")),
            left: box.x, right: box.x + box.width, top: box.y + box.height / 2 - 3, bottom: box.y + box.height / 2 + 3,
            inside: box.x >= 0 && box.x + box.width <= frame.width && box.y + box.height <= frame.height};
  });
})"""


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page with nothing in it."""
    context = browser.new_context()
    yield context.new_page()
    context.close()


@pytest.mark.timeout(180)
def test_no_text_of_the_gallery_is_small_or_lies_over_another(page: Any) -> None:
    page.set_content("".join(draw(made) for made in GALLERY.values()))
    for name, texts in zip(GALLERY, page.evaluate(BOXES), strict=True):
        assert min(text["size"] for text in texts) >= 10, name
        assert [text["words"] for text in texts if not text["inside"]] == [], name
        rows: dict[int, list[dict[str, Any]]] = {}
        for text in texts:
            rows.setdefault(round(text["top"] / 3), []).append(text)
        for row in rows.values():
            row.sort(key=lambda text: float(text["left"]))
            for one, other in pairwise(row):
                assert one["right"] <= other["left"] + 0.5, (name, one["words"], other["words"])


SIZES = {name: made for name, made in GALLERY.items() if re.search(r"on (2|9)$|^all_\w+ on 64|^send on 64", name)}
"""Pictures of each kind and width; to make an image of each of the gallery takes a minute."""


@pytest.mark.parametrize("width", [320, *(pytest.param(wide, marks=pytest.mark.nightly) for wide in (640, 1200))])
def test_a_narrow_notebook_scrolls_a_picture_before_it_is_too_small_to_be_read(page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 600})
    lab = "<style>img { max-width: 100%; height: auto; }</style>"  # as JupyterLab has it
    page.set_content(lab + "".join(Picture(made).bundle["text/html"] for made in SIZES.values()))
    page.wait_for_function("() => [...document.images].every((img) => img.complete)")
    shown = page.evaluate("() => [...document.images].map((img) => [img.width, img.naturalWidth, img.height])")
    for (name, made), (wide, whole, tall) in zip(SIZES.items(), shown, strict=True):
        sizes = [float(size) for size in re.findall(r'font-size="([\d.]+)"', draw(made))]
        assert min(sizes) * wide / whole >= 9.99, name
        assert wide <= whole, name
        assert tall > 0
