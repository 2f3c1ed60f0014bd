"""Each chart: its numbers in words, and a picture of these very numbers."""

from __future__ import annotations

import math
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

import nbcomm
from nbcomm.analysis.schedule import KINDS as WORK
from nbcomm.analysis.schedule import Stretch
from nbcomm.analysis.story import KINDS as TIME
from nbcomm.charts.bars import Bars, Schedule
from nbcomm.charts.chart import Chart
from nbcomm.charts.curve import Curve
from nbcomm.charts.from_record import SPENT
from nbcomm.charts.grid import Box, Grid
from nbcomm.charts.shards import Part, Shards, Whole
from nbcomm.charts.ticks import even, even_bytes, powers
from nbcomm.durations import short
from nbcomm.measures.memory import KINDS as MEMORY
from nbcomm.pictures.elements import CHAR, COLOURS, DARK, GROUND, INK, LOOKS, MARK, MONO, ON, PAD, WORDS

SVG = "{http://www.w3.org/2000/svg}"


def bars() -> Bars:
    values = {"rank 0": [0.25, 0.5], "rank 1": [1.0, 0.0], "rank 2": [0.001, 0.75]}
    return Bars("Where the time went", ["compute", "waiting"], values, unit=short, notes=["Overlap: 20%."])


def grid() -> Grid:
    boxes = {"0": [Box("0", (0,)), Box("0,2", (0, 2)), Box("")]}
    return Grid("Samples", ("sample", "epoch"), ["0", "1", "2"], boxes)


def shares() -> Grid:
    boxes = {"0": [Box("", (0,), 0.0), Box("1 KiB", (0,), 0.5)], "1": [Box("2 KiB", (1,), 1.0), Box("", (1,), 0.0)]}
    return Grid("Bytes", ("to rank", "from rank"), ["0", "1"], boxes)


def schedule() -> Schedule:
    stretches = {0: [Stretch("forward", 1.0, 2.0, "F0")], 1: [Stretch("backward", 2.0, 5.0, "B0")]}
    return Schedule("Pipeline", ["forward", "backward"], stretches)


def curve() -> Curve:
    points = [(1024, 1e-4), (1 << 20, 1e-2)]
    return Curve("all_reduce", points, lambda size: 1e-4 * 100 ** math.log(size / 1024, 1024), ["a", "b"])


def shards() -> Shards:
    parts = (Part((0, 0), (2, 8), (0, 2)), Part((2, 0), (2, 8), (1, 3)))
    return Shards("Parts of w", [Whole("w", "4 × 8", (4, 8), parts, "Replicate over dp, Shard(0) over tp")])


ALL = [bars, grid, shares, schedule, curve, shards]


def elements(chart: Chart, kind: str) -> list[ET.Element]:
    return ET.fromstring(chart.svg).findall(SVG + kind)  # noqa: S314 - our own


def boxes(chart: Chart, fill: str) -> list[tuple[float, ...]]:
    """The place and the size of the boxes of a colour, without those of a legend."""
    found = [each for each in elements(chart, "rect") if each.get("fill") == fill]
    made = [tuple(float(each.get(side, 0)) for side in ("x", "y", "width", "height")) for each in found]
    return [each for each in made if each[2:] != (22, 14)]


def fill(kind: str) -> str:
    return LOOKS[kind][0]


@pytest.mark.parametrize("make", ALL)
def test_a_chart_is_a_picture_with_its_words_and_nothing_leaves_it(make: type[Chart]) -> None:
    chart = make()  # type: ignore[call-arg]
    root = ET.fromstring(chart.svg)  # noqa: S314 - our own
    wide, tall = (float(root.get(side, 0)) for side in ("width", "height"))
    assert root.findtext(SVG + "desc") == repr(chart)
    for text in root.findall(SVG + "text"):
        length = len(text.text or "") * (CHAR if text.get("font-family") == MONO else WORDS)
        part = {"start": 0.0, "middle": 0.5, "end": 1.0}[text.get("text-anchor", "start")]
        x = float(text.get("x", 0)) - part * length
        assert 0 <= x <= x + length <= wide, text.text
        assert 0 < float(text.get("y", 0)) <= tall, text.text
    for box in root.findall(SVG + "rect"):
        x, y, w, h = (float(box.get(side, 0)) for side in ("x", "y", "width", "height"))
        assert x >= 0
        assert y >= 0
        assert x + w <= wide
        assert y + h <= tall


@pytest.mark.parametrize("make", ALL)
def test_a_chart_is_light_or_dark_as_its_page(make: type[Chart]) -> None:
    chart = make()  # type: ignore[call-arg]
    used = {*re.findall("#[0-9A-F]{6}", chart.svg)}
    assert used <= {*COLOURS, *ON, *DARK, MARK, *(fill for fill, _ in LOOKS.values())}, (
        "a colour that the style sheet for a dark ground does not know"
    )
    assert f'[fill="{GROUND}"]{{fill:{DARK[GROUND]}}}' in chart.themed
    assert {*chart.bundle} >= {"text/html", "text/plain"}


def test_bars_are_as_long_as_their_numbers() -> None:
    chart = bars()
    assert repr(chart).splitlines() == [
        "Where the time went:",
        "rank 0: compute 250 ms, waiting 500 ms; 750 ms in all",
        "rank 1: compute 1 s; 1 s in all",
        "rank 2: compute 1 ms, waiting 750 ms; 751 ms in all",
        "Overlap: 20%.",
    ]
    (quarter, whole, least), (half, _) = boxes(chart, fill("compute")), boxes(chart, fill("waiting"))
    assert least[2] == 1, "the shortest part is seen"
    assert (quarter[2] + 1) * 4 == (half[2] + 1) * 2 == whole[2] + 1  # a gap parts them
    assert half[0] == pytest.approx(quarter[0] + quarter[2] + 1)
    texts = [each.text for each in elements(chart, "text")]
    assert texts.count("250 ms") == 1
    assert "1 s" in texts
    assert "751 ms (compute 1 ms)" in texts, "a part without room for its text is named behind its bar"


def test_bars_of_nothing_have_a_chart_too() -> None:
    chart = Bars("Memory", ["weights"], {"rank 0": [0]}, unit=short)
    assert "rank 0: nothing; 0 in all" in repr(chart)
    assert boxes(chart, fill("weights")) == []


def test_a_box_has_the_colours_of_its_owners() -> None:
    chart = grid()
    assert repr(chart).splitlines() == ["Samples:", "sample 0 1 2", "epoch 0: 0 0,2 –"]
    whole, half = boxes(chart, COLOURS[0])
    (other,) = boxes(chart, COLOURS[2])
    assert half[3] == pytest.approx(whole[3] / 2, abs=0.3)
    assert other[1] == pytest.approx(half[1] + half[3], abs=0.3)


def test_a_share_is_a_bar_in_its_box() -> None:
    chart = shares()
    assert "from rank 0: – 1 KiB" in repr(chart)
    (half,), (whole,) = boxes(chart, COLOURS[0]), boxes(chart, COLOURS[1])
    assert half[2] * 2 == pytest.approx(whole[2], abs=0.2)


def test_a_schedule_begins_with_the_first_work() -> None:
    chart = schedule()
    assert repr(chart).splitlines()[1:] == ["rank 0: F0 1 s", "rank 1: B0 3 s"]
    (forward,), (backward,) = boxes(chart, fill("forward")), boxes(chart, fill("backward"))
    assert forward[2] + 1 == pytest.approx((backward[2] + 1) / 3, abs=0.2)
    assert backward[0] == pytest.approx(forward[0] + forward[2] + 1, abs=0.2)


def test_points_lie_on_their_line() -> None:
    chart = curve()
    assert repr(chart).splitlines()[1:] == ["1 KiB: 100 µs", "1 MiB: 10 ms"]
    points = [(x + w / 2, y + h / 2) for x, y, w, h in boxes(chart, INK)][1:]  # without the legend's
    (line,) = [each.get("d", "") for each in elements(chart, "path") if "L" in each.get("d", "")]
    ends = [tuple(map(float, end.split())) for end in line.removeprefix("M").split("L")]
    assert points == [pytest.approx(end, abs=0.2) for end in (ends[0], ends[-1])]


def test_parts_lie_where_they_are() -> None:
    chart = shards()
    assert repr(chart).splitlines()[1:] == [
        "w, 4 × 8, Replicate over dp, Shard(0) over tp",
        "  ranks 0,2: rows 0-1, columns 0-7",
        "  ranks 1,3: rows 2-3, columns 0-7",
    ]
    (first,), (third,) = boxes(chart, COLOURS[0]), boxes(chart, COLOURS[1])
    assert first[0] == third[0] == PAD
    assert third[1] == pytest.approx(first[1] + 2 * (first[3] - 0.2) + 1, abs=0.5)


def test_a_kind_has_its_own_colour_and_pattern_and_never_a_ranks() -> None:
    assert not {fill for fill, _ in LOOKS.values()} & {*COLOURS}
    assert len({*LOOKS.values()}) == len(LOOKS)
    for kinds in (SPENT, WORK, MEMORY):
        assert len({LOOKS[kind][1] for kind in kinds}) == len(kinds), "colour alone would tell two of them apart"


def test_the_panel_has_the_colours_and_patterns_of_the_charts() -> None:
    css = (Path(nbcomm.__file__).parent / "panel" / "js" / "panel.css").read_text()
    patterns = {"": "", "/": "repeating-linear-gradient(135deg", ":": "radial-gradient("}
    for kind in TIME:
        (drawn,) = re.findall(rf'\[data-kind="{kind}"\] {{ background: (.*); }}', css)
        colour, pattern = LOOKS[kind]
        assert colour.lower() in drawn
        assert drawn.startswith(patterns[pattern] or colour.lower())


@pytest.mark.parametrize("sizes", [(2, 2, 2, 1), (300, 300, 300, 4), (1, 500)])
@pytest.mark.parametrize("down", [True, False])
def test_the_ranks_of_a_thin_part_stand_in_it(sizes: tuple[int, ...], down: bool) -> None:
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    turned = [
        ((start, 0), (size, 8)) if down else ((0, start), (8, size)) for start, size in zip(starts, sizes, strict=True)
    ]
    parts = tuple(Part(start, size, (rank + 10,)) for rank, (start, size) in enumerate(turned))
    whole = (sum(sizes), 8) if down else (8, sum(sizes))
    chart = Shards("w", [Whole("w", "", whole, parts)])
    for rank in range(len(sizes)):
        ((_, _, wide, tall),) = boxes(chart, COLOURS[(rank + 10) % 8])
        assert wide >= 2 * CHAR + 4
        assert tall >= 20


def test_ticks_lie_within_the_axis() -> None:
    assert even(0) == even_bytes(0.5) == [0]
    assert even(1) == [0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert even_bytes(1000)[-1] <= 1000
    assert len(even_bytes(1000)) <= 6
    assert powers(1000, 1000, 10) == [1000, 10000]
    assert powers(1e-6, 1e3, 10, about=6)[-1] >= 1e3
