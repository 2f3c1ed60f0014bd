"""A cell's value in an area that has a place for it, and in one that has none. The clock is a fake."""

from __future__ import annotations

from typing import Any

import pytest

from nbcomm.notebook.display.area import Area
from nbcomm.notebook.output.cell_options import CellOptions
from nbcomm.notebook.output.cell_output import CellOutput
from nbcomm.notebook.output.execute_result import cell_area, placing
from nbcomm.protocol import Clear, Result, Text

from ..cells import Cell, png, shown_png
from ..recording_area import RecordingArea

HTML = Result({"text/plain": "<Table>", "text/html": "<b>x</b>"})


class Results(RecordingArea):
    """A recording area that has a place for values."""

    def result(self, data: dict[str, Any], metadata: dict[str, Any]) -> None:
        self._begin("result", data, metadata)
        self.outputs.append({"output_type": "execute_result", "data": data, "metadata": metadata})


class InKernel(Cell):
    """A cell that is shown in such an area."""

    def __init__(self, ranks=range(3), **options: Any) -> None:
        super().__init__(ranks, **options)
        self.area = Results()
        self.output = CellOutput(ranks, CellOptions(**options), area=self.area, clock=lambda: self.now)


def types(cell: Cell) -> list[str]:
    return [output["output_type"] for output in cell.area.outputs]


def text(value: str) -> Result:
    return Result({"text/plain": value})


def test_one_value_of_all_ranks_is_the_cells():
    cell = InKernel()
    for rank in range(3):
        cell.write(rank, "before\n")
        cell.feed(rank, text("6\n7"))
    assert cell.close() == ["[0-2] before\n", "[0-2] 6\n      7"]
    assert types(cell) == ["stream", "execute_result"]


def test_a_value_whose_address_differs_is_one():
    cell = InKernel()
    for rank in range(3):
        cell.feed(rank, text(f"<__main__.A at 0x7f{rank}>"))
    assert cell.close() == ["[0-2] <__main__.A at 0x…>"]
    assert types(cell) == ["execute_result"]


@pytest.mark.parametrize("values", [["1", "1", "2"], ["1", "1", None], ["1", None, None]])
def test_values_on_which_ranks_differ_are_text(values):
    cell, ordinary = InKernel(), Cell(range(3))
    for rank, value in enumerate(values):
        if value is not None:
            cell.feed(rank, text(value))
            ordinary.feed(rank, text(value))
    assert cell.close() == ordinary.close()
    assert types(cell) == ["stream"]


def test_a_text_that_a_rank_printed_is_not_its_value():
    cell = InKernel(range(2))
    cell.write(0, "6\n")
    cell.feed(1, text("6"))
    assert cell.close() == ["[0-1] 6\n"]
    assert types(cell) == ["stream"]
    cell = InKernel(range(2))
    for rank in range(2):
        cell.write(rank, "6\n")
        cell.feed(rank, text("6"))
    assert cell.close() == ["[0-1] 6\n", "[0-1] 6"]
    assert types(cell) == ["stream", "execute_result"]


@pytest.mark.parametrize("options", [{"fold": False}, {"by_rank": True}])
def test_what_is_not_folded_is_no_value_of_the_cell(options):
    cell, alone = InKernel(**options), InKernel([1], **options)
    for rank in range(3):
        cell.feed(rank, text("6"))
    alone.feed(1, text("6"))
    assert cell.close() == ["[0] 6\n[1] 6\n[2] 6\n"]
    assert alone.close() == ["[1] 6"]
    assert (types(cell), types(alone)) == (["stream"], ["execute_result"])


def test_a_quiet_cell_has_none():
    cell = InKernel(quiet=True)
    for rank in range(3):
        cell.feed(rank, text("6"))
    assert cell.close() == []


def test_a_value_that_is_more_than_text_stands_below_its_label():
    cell = InKernel()
    for rank in range(3):
        cell.feed(rank, png("figure"))
        cell.feed(rank, HTML)
    assert cell.close() == ["[0-2]\n", shown_png("figure"), "[0-2]\n", "<text/html=<b>x</b>, text/plain=<Table>>"]
    assert types(cell) == ["stream", "display_data", "stream", "execute_result"]


@pytest.mark.parametrize("value", [text("6"), HTML])
def test_a_value_is_seen_while_it_waits_for_the_others_and_is_one_in_the_end(value):
    cell = InKernel()
    cell.feed(0, value)
    cell.tick(1.0)
    assert cell.area.shown == [f"[0] {value.data['text/plain']}"]
    for rank in (1, 2):
        cell.feed(rank, value)
    cell.close()
    assert cell.area.outputs[-1]["output_type"] == "execute_result"
    assert cell.area.outputs[-1]["data"].get("text/html") == value.data.get("text/html")
    assert "[0] " not in cell.area.text


def test_a_value_is_shown_again_where_a_rank_clears_what_stood_before():
    cell = InKernel(range(2))
    for rank in range(2):
        cell.feed(rank, text("6"))
    cell.write(0, "more\n")
    cell.output.ended(1)
    cell.output.render()
    assert types(cell) == ["execute_result", "stream"]
    cell.feed(0, Clear())
    cell.close()
    assert cell.area.shown == ["[1] 6\n"]


# ── clear_output ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("wait", [True, False])
def test_a_clear_is_told_once_where_nothing_is_there_to_be_cleared(wait):
    cell = InKernel()
    for rank in range(3):
        cell.feed(rank, Clear(wait=wait))
        cell.output.render()
    cell.close()
    assert cell.area.calls == [("clear", wait)]


def test_a_clear_is_told_where_nothing_has_been_shown_yet():
    cell = InKernel([0])
    cell.feed(0, Text("stdout", "gone\n"), Clear())
    cell.close()
    assert cell.area.calls == [("clear", False)]
    cell = InKernel([0, 1])
    cell.write(0, "gone\n")  # waits for the other rank
    cell.output.render()
    cell.feed(0, Clear())
    cell.close()
    assert cell.area.calls == [("clear", False)]


def test_a_rank_that_has_shown_nothing_clears_nothing_of_others():
    cell = InKernel([0, 1])
    cell.write(0, "kept\n")
    cell.tick(1.0)
    cell.feed(1, Clear())
    cell.close()
    assert cell.area.text == "[0] kept\n"
    assert "clear" not in [call[0] for call in cell.area.calls]


def test_an_ordinary_area_hears_of_no_such_clear():
    cell = Cell()
    cell.feed(0, Clear())
    cell.close()
    assert cell.area.calls == []


# ── which area ──────────────────────────────────────────────────────────────────────────────────────


def test_a_place_is_asked_for_while_it_is_set():
    area, asked = RecordingArea(), []

    def place(usual: Area) -> Area:
        asked.append(usual)
        return area

    with placing(place):
        assert cell_area() is area
        CellOutput([0]).area.stream("stdout", "x\n")
        assert area.text == "x\n"
    assert cell_area() is not area
    assert len(asked) == 2
