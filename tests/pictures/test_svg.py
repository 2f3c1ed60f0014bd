"""The picture as a file that any viewer shows: attributes alone, and words for whoever does not see it."""

from __future__ import annotations

import base64
import html
import re
from xml.etree import ElementTree as ET

import pytest

import nbcomm
from nbcomm.pictures.plan import NAMES, plan
from nbcomm.pictures.svg import COLOURS, draw

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [2, 5, 16])
def test_it_is_well_formed_and_made_of_attributes_alone(name: str, n: int) -> None:
    text = draw(plan(name, n=n))
    picture = ET.fromstring(text)  # noqa: S314 - our own
    tags = {element.tag.removeprefix(SVG) for element in picture.iter()}
    assert tags <= {"svg", "title", "desc", "rect", "path", "text"}
    assert not re.search(r"style=|class=|href|url\(|<script|\bon\w+=", text)
    assert picture.find(f"{SVG}title").text.startswith(name)
    assert f"rank {n - 1}:" in picture.find(f"{SVG}desc").text


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [2, 8, 16])
def test_all_of_it_is_within_its_frame(name: str, n: int) -> None:
    picture = ET.fromstring(draw(plan(name, ["wide " * 20] * n if name in ("gather", "broadcast") else None, n=n)))  # noqa: S314
    width, height = float(picture.get("width")), float(picture.get("height"))
    for rect in picture.iter(f"{SVG}rect"):
        x, y, w, h = (float(rect.get(key)) for key in ("x", "y", "width", "height"))
        assert 0 <= x <= x + w <= width
        assert 0 <= y <= y + h <= height
    for text in picture.iter(f"{SVG}text"):
        assert 0 <= float(text.get("y")) <= height


def test_what_users_write_is_text_and_nothing_else() -> None:
    text = draw(plan("broadcast", ["<script>alert('x')</script> & \"", None]))
    assert "<script" not in text
    assert "&lt;script" in text
    ET.fromstring(text)  # noqa: S314


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_every_word_is_easy_to_read_on_a_light_and_on_a_dark_ground() -> None:
    from nbcomm.pictures import svg

    light = [(svg._GROUND, svg._INK), (svg._GROUND, svg._QUIET), (svg._PLATE, svg._INK)]
    dark = [(svg.DARK[ground], svg.DARK[ink]) for ground, ink in light]
    for ground, ink in [*zip(COLOURS, svg._ON, strict=True), (svg._HUB, "#FFFFFF"), *light, *dark]:
        light, dark = sorted((_luminance(ground), _luminance(ink)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (ground, ink)


def test_a_picture_shows_itself_and_prints_as_words() -> None:
    picture = nbcomm.draw("all_reduce", [1, 2, 3], op="max")
    assert "rank 0: 1 → 3" in repr(picture)
    bundle = picture._repr_mimebundle_(include=None, exclude=None)
    assert bundle["image/svg+xml"] == picture.svg
    assert bundle["text/plain"] == repr(picture)
    form = r'<style>.*</style><img class="nbcomm-picture" alt="([^"]*)" src="data:image/svg\+xml;base64,(.*)"/>'
    found = re.fullmatch(form, bundle["text/html"], re.DOTALL)
    assert found
    assert html.unescape(found[1]) == repr(picture)
    assert re.sub("<style>.*</style>", "", base64.b64decode(found[2]).decode()) == picture.svg


def test_no_colour_but_those_of_the_ranks_stays_the_same_on_a_dark_ground() -> None:
    from nbcomm.pictures import svg

    used = {found for name in NAMES for n in (4, 16) for found in re.findall("#[0-9A-F]{6}", draw(plan(name, n=n)))}
    assert used - {*svg.DARK} <= {*COLOURS, *svg._ON, svg._HUB}
    assert not {*svg.DARK} & {*COLOURS, *svg._ON, svg._HUB}
    themed = draw(plan("all_reduce"), themed=True)
    assert all(f'[fill="{light}"]{{fill:{dark}}}' in themed for light, dark in svg.DARK.items())
