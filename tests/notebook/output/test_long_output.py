"""Of very many lines a page gets the first and the last, and a word about those between them."""

from __future__ import annotations

import pytest

from nbcomm.notebook.output import long_output
from nbcomm.protocol import Clear

from ..cells import Cell, png, shown_png

LEFT_OUT = (
    "nbcomm: {} lines are left out here: a page with all of them would be slow.\n"
    "nbcomm: write long output to a file, or run the cell with --quiet.\n"
)


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_output, "MOST", 5)
    monkeypatch.setattr(long_output, "LAST", 3)


def lines(*numbers: int) -> str:
    return "".join(f"[0] {number}\n" for number in numbers)


def test_the_first_lines_and_the_last_are_shown() -> None:
    cell = Cell([0])
    for number in range(12):
        cell.write(0, f"{number}\n")
        cell.tick(0.2)
    assert cell.close() == [lines(0, 1, 2, 3, 4), LEFT_OUT.format(4), lines(9, 10, 11)]


@pytest.mark.parametrize("count", [5, 6, 8])
def test_a_few_more_are_shown_without_a_word(count: int) -> None:
    cell = Cell([0])
    cell.write(0, "".join(f"{number}\n" for number in range(count)))
    assert "".join(cell.close()) == lines(*range(count))


def test_what_is_no_line_keeps_its_place() -> None:
    cell = Cell([0])
    cell.write(0, "".join(f"{number}\n" for number in range(10)))
    cell.feed(0, png("picture"))
    cell.write(0, "10\n11\n12\n13\n")
    assert cell.close() == [
        lines(0, 1, 2, 3, 4),
        LEFT_OUT.format(2),
        lines(7, 8, 9) + "[0]\n",
        shown_png("picture"),
        LEFT_OUT.format(1),
        lines(11, 12, 13),
    ]


def test_a_cell_that_clears_its_output_begins_anew() -> None:
    cell = Cell([0])
    cell.write(0, "".join(f"{number}\n" for number in range(10)))
    cell.tick(0.5)
    cell.feed(0, Clear(False))
    cell.write(0, "a\nb\nc\nd\ne\n")
    assert "".join(cell.close()).endswith("[0] a\n[0] b\n[0] c\n[0] d\n[0] e\n")
    assert "left out" not in "".join(cell.close())


def test_the_last_ones_are_seen_while_more_come() -> None:
    seen = long_output.LongOutput(lambda *_: None, lambda *_: None)
    assert seen.glimpse() == []
    for number in range(20):
        seen.write("stdout", f"{number}\n")
    assert seen.glimpse() == ["nbcomm: 15 more lines; the last ones are:\n", "17\n", "18\n", "19\n"]


def test_equal_lines_of_many_ranks_count_once() -> None:
    cell = Cell(range(4))
    for rank in range(4):
        cell.write(rank, "".join(f"{number}\n" for number in range(5)))
    assert "left out" not in "".join(cell.close())
