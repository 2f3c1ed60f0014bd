"""Of very many lines a page gets the first and the last, and a word about those between them; a file gets all."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from nbcomm.notebook.output import long_output, whole_output
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
    monkeypatch.setattr(whole_output, "_HELD", 20)
    monkeypatch.delenv("NBCOMM_LINES", raising=False)


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


def kept(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}


def where(path: Path, most: int = 5) -> str:
    return (
        f"a page with all of them would be slow.\nnbcomm: all lines of this cell are in {path} until the world stops "
        "or ten more cells are as long; "
        f"copy the file to keep it.\nnbcomm: NBCOMM_LINES sets how many lines a cell shows before that (now {most}).\n"
    )


def test_all_lines_are_in_a_file_and_the_page_says_where(tmp_path: Path) -> None:
    cell = Cell([0, 1], folder=tmp_path)
    for rank in range(2):
        cell.write(rank, "".join(f"{number} of {rank}\n" for number in range(6)))
        cell.write(rank, "".join(f"{number}é\n" for number in range(6, 12)), "stderr")
    shown = "".join(cell.close())
    told = f"nbcomm: 10 lines are left out here: {where(tmp_path / 'output-1.txt')}"
    whole = "".join(f"[{rank}] {number} of {rank}\n" for number in range(6) for rank in range(2))
    whole += "".join(f"[0-1] {number}é\n" for number in range(6, 12))
    assert kept(tmp_path) == {"output-1.txt": whole}
    lines_shown = whole.splitlines(keepends=True)
    assert shown == "".join(lines_shown[:5]) + told + "".join(lines_shown[-3:])


def test_an_ordinary_cell_leaves_no_file(tmp_path: Path) -> None:
    cell = Cell([0], folder=tmp_path)
    cell.write(0, "a long line of more than twenty characters\n" * 5)
    cell.tick()
    assert len(kept(tmp_path)) == 1, "it may become more"
    assert "left out" not in "".join(cell.close())
    assert kept(tmp_path) == {}


def test_a_cell_that_clears_its_output_begins_the_file_again(tmp_path: Path) -> None:
    cell = Cell([0], folder=tmp_path)
    cell.write(0, "".join(f"{number}\n" for number in range(20)))
    cell.tick(0.5)
    cell.feed(0, Clear(False))
    cell.write(0, "".join(f"{number}\n" for number in range(100, 120)))
    cell.close()
    assert kept(tmp_path) == {"output-1.txt": lines(*range(100, 120))}


def test_the_files_of_the_last_cells_stay(tmp_path: Path) -> None:
    for last in range(13):
        cell = Cell([0], folder=tmp_path)
        cell.write(0, "".join(f"{number}\n" for number in [*range(20), last]))
        cell.close()
    assert kept(tmp_path) == {f"output-{n + 1}.txt": lines(*range(20), n) for n in range(3, 13)}


def test_where_there_is_no_room_for_it_the_cell_goes_on_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "open", full)
    cell = Cell([0], folder=tmp_path)
    cell.write(0, "".join(f"{number}\n" for number in range(12)))
    shown = "".join(cell.close())
    assert f"slow, and no file with them could be written in {tmp_path} (No space left on device)." in shown
    assert shown.endswith(lines(9, 10, 11))


@pytest.mark.parametrize(("text", "most"), [("7", 7), ("1_0", 10), ("1,1", 11), ("", 5), ("9" * 30, 12)])
def test_the_user_sets_how_many_are_shown(text: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBCOMM_LINES", text)
    cell = Cell([0])
    cell.write(0, "".join(f"{number}\n" for number in range(most + 3)))
    cell.write(0, "".join(f"{number}\n" for number in range(most + 3, most + 20)))
    shown = "".join(cell.close())
    left_out = "" if text == "9" * 30 else LEFT_OUT.format(17)
    assert left_out in shown
    assert shown.startswith(lines(*range(most)))


@pytest.mark.parametrize("text", ["0", "-1", "many", "1e5"])
def test_what_is_no_number_is_said_and_changes_nothing(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBCOMM_LINES", text)
    cell = Cell([0])
    cell.write(0, "a\n")
    cell.tick()
    cell.write(0, "b\n")
    said = f"nbcomm: NBCOMM_LINES must be a number of lines above 0, not {text!r}; 5 are shown.\n"
    assert "".join(cell.close()) == f"{said}[0] a\n[0] b\n"
