"""The picture as a file that any viewer shows: attributes alone, and words for whoever does not see it."""

from __future__ import annotations

import base64
import html
import itertools
import re
import struct
from dataclasses import replace
from xml.etree import ElementTree as ET

import nbformat
import pytest
from nbconvert import LatexExporter

import nbcomm
from nbcomm.explorer.explorer import Choices, Explorer
from nbcomm.pictures.elements import CHAR, COLOURS, HUB, ON, PLATE
from nbcomm.pictures.layout import TOP
from nbcomm.pictures.plan import NAMES, plan
from nbcomm.pictures.svg import draw

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


def boxes(picture: ET.Element, colour: str) -> list[tuple[float, ...]]:
    """The frames of the cells in a rank's colour: left, top, right, bottom."""
    found = []
    for rect in picture.iter(f"{SVG}rect"):
        if rect.get("fill") == colour and rect.get("rx") == "5":
            x, y, wide, tall = (float(rect.get(key)) for key in ("x", "y", "width", "height"))
            found.append((x, y, x + wide, y + tall))
    return sorted(found)


@pytest.mark.parametrize("name", ["all_to_all", "reduce_scatter", "scatter"])
@pytest.mark.parametrize("n", [2, 4, 6])
def test_what_moves_starts_at_its_item(name: str, n: int) -> None:
    picture = ET.fromstring(draw(plan(name, n=n, **({"src": 1} if name == "scatter" else {}))))  # noqa: S314
    for rank in range(n) if name != "scatter" else [1]:
        items = boxes(picture, COLOURS[rank])[:n]
        ways = [path.get("d") for path in picture.iter(f"{SVG}path") if path.get("stroke") == COLOURS[rank]]
        starts = sorted(tuple(map(float, re.match(r"M([\d.]+) ([\d.]+)", way).groups())) for way in ways)
        assert len(starts) == n
        for (x, y), (left, top, right, _) in zip(starts, items, strict=True):
            assert left < x < right
            assert y == pytest.approx(top, abs=0.1)


def segments(way: str) -> list[tuple[str, float, float, float]]:
    """The straight parts of a line: horizontal or vertical, where, from, and to."""
    x = y = 0.0
    found = []
    for kind, words in re.findall("([MVHQ])([^MVHQ]*)", way):
        at = [*map(float, words.split())]
        if kind == "H":
            found.append((kind, y, *sorted((x, at[0]))))
            x = at[0]
        elif kind == "V":
            found.append((kind, x, *sorted((y, at[0]))))
            y = at[0]
        else:
            x, y = at[-2:]
    return found


@pytest.mark.parametrize(
    ("name", "n"),
    [(name, n) for name in ("scatter", "reduce_scatter", "all_to_all") for n in (2, 3, 4, 6)] + [("scatter", 8)],
)
def test_no_line_lies_on_another_or_on_a_cell(name: str, n: int) -> None:
    picture = ET.fromstring(draw(plan(name, n=n, **({"src": 1} if name == "scatter" else {}))))  # noqa: S314
    cells = [box for colour in COLOURS for box in boxes(picture, colour)]
    ways = [path.get("d") for path in picture.iter(f"{SVG}path") if path.get("stroke") in COLOURS]
    assert len(ways) == (n if name == "scatter" else n * n)
    for one, other in itertools.combinations(ways, 2):
        for (kind, at, start, end), (also, there, begins, ends) in itertools.product(segments(one), segments(other)):
            apart = kind != also or abs(at - there) > 3 or min(end, ends) - max(start, begins) < 1
            assert apart, (one, other)
    for way in ways:
        for kind, at, start, end in segments(way):
            for left, top, right, bottom in cells:
                if kind == "H":
                    assert not (top < at < bottom and min(end, right) - max(start, left) > 0), way
                else:
                    assert not (left < at < right and min(end, bottom) - max(start, top) > 0.2), way


def test_the_lines_of_one_rank_do_not_cross() -> None:
    for n, src in [(4, 0), (4, 3), (8, 3)]:
        picture = ET.fromstring(draw(plan("scatter", n=n, src=src)))  # noqa: S314
        ways = [path.get("d") for path in picture.iter(f"{SVG}path") if path.get("stroke") in COLOURS]
        for one, other in itertools.permutations(ways, 2):
            for (kind, y, left, right), (also, x, top, bottom) in itertools.product(segments(one), segments(other)):
                assert not (kind == "H" and also == "V" and left < x < right and top < y < bottom), (one, other)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [2, 4, 8, 16, 64])
def test_the_last_row_can_read_it(name: str, n: int) -> None:
    sizes = re.findall(r'font-size="([\d.]+)"', draw(plan(name, n=n)))
    assert min(map(float, sizes)) >= 14


@pytest.mark.parametrize("n", [2, 4, 8])
def test_no_text_leaves_its_cell(n: int) -> None:
    for name in NAMES:
        picture = ET.fromstring(draw(plan(name, n=n)))  # noqa: S314
        plates = [
            (float(rect.get("x")), float(rect.get("x")) + float(rect.get("width")))
            for rect in picture.iter(f"{SVG}rect")
            if rect.get("fill") == PLATE
        ]
        middles = {(left + right) / 2: right - left for left, right in plates}
        for text in picture.iter(f"{SVG}text"):
            wide = middles.get(float(text.get("x")))
            if wide is not None and text.get("text-anchor") == "middle":
                assert len(text.text) * 14 * 0.602 <= wide, text.text


@pytest.mark.parametrize("name", [name for name in NAMES if name != "barrier"])
@pytest.mark.parametrize("n", [9, 16, 64])
def test_many_ranks_are_a_matrix_of_who_sends_to_whom(name: str, n: int) -> None:
    made = plan(name, n=n)
    picture = ET.fromstring(draw(made))  # noqa: S314
    assert not [path for path in picture.iter(f"{SVG}path") if "C" in path.get("d")]
    columns = [float(t.get("x")) for t in picture.iter(f"{SVG}text") if t.get("y") == f"{TOP - 4:.1f}"]
    assert len(columns) == (n if n < 64 else 16)
    side = (columns[1] - columns[0]) / (n // len(columns))
    left = columns[0] - side / 2
    marked = set()
    for rect in picture.iter(f"{SVG}rect"):
        x, y, wide = (float(rect.get(key)) for key in ("x", "y", "width"))
        if rect.get("rx") == "3" and rect.get("fill") in COLOURS:
            step = 30 if n <= 16 else 25
            row, first = int((y - TOP) // step), round((x - left) / side)
            assert rect.get("fill") == COLOURS[row % 8]
            marked |= {(row, first + column) for column in range(round(wide / side + 0.2))}
    assert marked == {(flow.src, flow.dst) for flow in made.flows}


@pytest.mark.parametrize(("name", "hub"), [("all_reduce", "max"), ("reduce", "max"), ("all_gather", "all")])
@pytest.mark.parametrize("n", [4, 9, 16, 64])
def test_where_all_data_meets_its_op_is_named(name: str, hub: str, n: int) -> None:
    picture = ET.fromstring(draw(plan(name, n=n, op="max")))  # noqa: S314
    ((left, right),) = [
        (float(rect.get("x")), float(rect.get("x")) + float(rect.get("width")))
        for rect in picture.iter(f"{SVG}rect")
        if rect.get("fill") == HUB
    ]
    assert [text.text for text in picture.iter(f"{SVG}text") if left < float(text.get("x")) < right] == [hub]


@pytest.mark.parametrize("ranks", [range(8, 11), range(90, 94), range(120, 124), range(6, 22)])
def test_the_number_of_a_rank_stands_within_its_chip(ranks: range) -> None:
    picture = ET.fromstring(draw(plan("all_gather", [1] * len(ranks), ranks=ranks)))  # noqa: S314
    chips = [each for each in picture.iter(f"{SVG}rect") if each.get("rx") == "5"]
    plates = [float(each.get("x")) for each in picture.iter(f"{SVG}rect") if each.get("fill") == PLATE]
    numbers = [text for text in picture.iter(f"{SVG}text") if text.get("fill") in ON and text.text.isdigit()]
    assert len(numbers) == len(chips)
    for number in numbers:
        x, half = float(number.get("x")), len(number.text) * CHAR / 2
        left = max(float(each.get("x")) for each in chips if float(each.get("x")) <= x)
        assert left + 3 <= x - half
        assert x + half + 3 <= min(plate for plate in plates if plate > x)


def test_each_item_stands_in_the_matrix() -> None:
    picture = ET.fromstring(draw(plan("all_to_all", n=8)))  # noqa: S314 - more lines than can be followed
    texts = [text.text for text in picture.iter(f"{SVG}text")]
    assert {f"{rank}{item}" for rank in range(1, 9) for item in range(1, 9)} <= set(texts)


def test_long_values_of_a_picture_are_shortened_where_they_are_the_same() -> None:
    rows = [[0] * 1000 for _ in range(4)]
    rows[2][500] = 7
    picture = draw(plan("all_gather", rows))
    assert picture.count(">[… 7 at 500") == 1 + 4  # of rank 2, and in what each rank gets
    assert picture.count(">[… 0 at 500") == 3 + 12


def test_what_users_write_is_text_and_nothing_else() -> None:
    text = draw(plan("broadcast", ["<script>alert('x')</script> & \"", None]))
    assert "<script" not in text
    assert "&lt;script" in text
    ET.fromstring(text)  # noqa: S314


class Coloured:
    def __repr__(self) -> str:
        return "\x1b[1;32mok\x1b[0m \x00\ud800"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (Coloured(), "ok \ufffd\ufffd"),
        ({"\x1b[31mlr": 1, "a\x00b": 2}, "{lr: 1, a\ufffdb: 2}"),
        ({"two\nlines": 1}, "{two lines: 1}"),
        ("\x00", "'\\x00'"),
        ("\ud800", "'\\ud800'"),
    ],
    ids=["colours", "keys", "lines", "zero", "surrogate"],  # pytest's own would hold these values
)
def test_what_cannot_be_seen_breaks_no_picture(value: object, shown: str) -> None:
    made = plan("broadcast", [value, None])
    assert made.before[0][0].text == shown
    noted = draw(replace(made, notes=("line 2: print('\x1b\x0c\ufffe')",)), themed=True)
    texts = [each.text for each in ET.fromstring(noted).iter(f"{SVG}text")]  # noqa: S314
    assert "line 2: print('\ufffd\ufffd\ufffd')" in texts


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_every_word_is_easy_to_read_on_a_light_and_on_a_dark_ground() -> None:
    from nbcomm.pictures import elements

    light = [(elements.GROUND, elements.INK), (elements.GROUND, elements.QUIET), (elements.PLATE, elements.INK)]
    dark = [(elements.DARK[ground], elements.DARK[ink]) for ground, ink in light]
    for ground, ink in [*zip(COLOURS, elements.ON, strict=True), (elements.HUB, "#FFFFFF"), *light, *dark]:
        assert _contrast(ground, ink) >= 4.5, (ground, ink)


def test_a_picture_shows_itself_and_prints_as_words() -> None:
    picture = nbcomm.draw("all_reduce", [1, 2, 3], op="max")
    assert "rank 0: 1 → 3" in repr(picture)
    bundle = picture._repr_mimebundle_(include=None, exclude=None)
    assert "image/svg+xml" not in bundle, "nbconvert would give it to Inkscape"
    width, height = struct.unpack(">II", base64.b64decode(bundle["image/png"])[16:24])
    assert (width, height) == tuple(3 * int(side) for side in re.findall(r' (?:width|height)="(\d+)"', picture.svg)[:2])
    assert bundle["text/plain"] == repr(picture)
    form = r'<style>.*</style><img class="nbcomm-picture nbcomm-least-\d+" alt="([^"]*)" '
    form += r'src="data:image/svg\+xml;base64,(.*)"/>'
    found = re.fullmatch(form, bundle["text/html"], re.DOTALL)
    assert found
    assert html.unescape(found[1]) == repr(picture)
    assert re.sub("<style>.*</style>", "", base64.b64decode(found[2]).decode()) == picture.svg


def test_a_pdf_takes_the_png(monkeypatch: pytest.MonkeyPatch) -> None:
    """By nbconvert each SVG is given to Inkscape, without which it ends."""
    monkeypatch.setenv("PATH", "")
    shown = [nbcomm.draw("all_reduce").bundle, Explorer(Choices("all_reduce")).bundle()]
    outputs = [nbformat.v4.new_output("display_data", bundle) for bundle in shown]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("draw()", outputs=outputs)])
    written, resources = LatexExporter().from_notebook_node(notebook)
    assert written.count("adjustimage") == len([*resources["outputs"]]) == 2
    assert all(picture.startswith(b"\x89PNG") for picture in resources["outputs"].values())


def test_where_no_font_is_there_is_no_png_without_its_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    from nbcomm.pictures import picture

    monkeypatch.setattr(picture, "_rastered", lambda drawn: b"nothing but lines")
    picture._has_fonts.cache_clear()
    try:
        assert {*nbcomm.draw("all_reduce").bundle} == {"text/html", "text/plain"}
    finally:
        picture._has_fonts.cache_clear()


def test_no_colour_but_those_of_the_ranks_stays_the_same_on_a_dark_ground() -> None:
    from nbcomm.pictures import elements

    used = {found for name in NAMES for n in (4, 16) for found in re.findall("#[0-9A-F]{6}", draw(plan(name, n=n)))}
    kinds = {elements.MARK, *(fill for fill, _ in elements.LOOKS.values())}
    assert used - {*elements.DARK} <= {*COLOURS, *elements.ON, elements.HUB, *kinds}
    for fill in kinds - {elements.MARK}:
        for other in (elements.MARK, elements.GROUND, elements.DARK[elements.GROUND]):
            assert _contrast(fill, other) >= 3, (fill, other)
    assert not {*elements.DARK} & {*COLOURS, *elements.ON, elements.HUB}
    themed = draw(plan("all_reduce"), themed=True)
    assert all(f'[fill="{light}"]{{fill:{dark}}}' in themed for light, dark in elements.DARK.items())
