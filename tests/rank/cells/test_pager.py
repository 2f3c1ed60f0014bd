"""What would go to a pager goes to the cell."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nbcomm.protocol import Display, Text
from nbcomm.rank.cells.pager import show_pages
from nbcomm.rank.output.capture import Capture

HELP = "\x1b[31mType:\x1b[39m int\n\x1b[38;5;28;01mdef\x1b[39;00m f"


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    return Capture({name: tmp_path / name for name in ("stdout", "stderr")})


@pytest.fixture
def written(capture: Capture) -> tuple[Any, list[Any]]:
    """A shell's payloads, and those that no cell of ours has made."""
    others: list[Any] = []
    shell = SimpleNamespace(
        payload_manager=SimpleNamespace(write_payload=lambda data, single=True: others.append(data))
    )
    show_pages(shell, capture)
    return shell.payload_manager.write_payload, others


def test_text_is_text_and_its_colours_end_where_they_end(capture: Capture, written: tuple[Any, list[Any]]) -> None:
    with capture.of_run(1):
        written[0]({"source": "page", "data": {"text/plain": HELP}, "start": 0})
    items = [item for _, items in capture.take(end=True) for item in items]
    assert items == [Text("stdout", "\x1b[31mType:\x1b[0m int\n\x1b[38;5;28;01mdef\x1b[0m f\n")]


def test_more_than_text_is_a_display(capture: Capture, written: tuple[Any, list[Any]]) -> None:
    data = {"text/plain": "x", "text/html": "<b>x</b>"}
    with capture.of_run(1):
        written[0]({"source": "page", "data": data}, single=False)
    assert [item for _, items in capture.take(end=True) for item in items] == [Display(data)]


@pytest.mark.parametrize("source", ["set_next_input", "edit_magic"])
def test_what_a_rank_cannot_do_is_said(capture: Capture, written: tuple[Any, list[Any]], source: str) -> None:
    with capture.of_run(1):
        written[0]({"source": source, "text": "x"})
    ((_, (item,)),) = capture.take(end=True)
    assert isinstance(item, Text)
    assert "in a cell that runs" in item.text


def test_what_belongs_to_no_cell_of_ours_goes_where_it_went(capture: Capture, written: tuple[Any, list[Any]]) -> None:
    payload = {"source": "page", "data": {"text/plain": "x"}}
    written[0](payload)
    assert written[1] == [payload]
    assert capture.take(end=True) == []
