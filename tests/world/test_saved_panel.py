"""The table that the notebook's file holds: what it tells is true when the cell has ended, and is of that cell."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .notebook import Cell, Notebook, comes_last

HANGS = "%%distributed\nif rank != 1: barrier()"
DIES = "%%distributed\nimport os\nif rank == 1: os.kill(os.getpid(), 9)\nbarrier()"
IDLE = ["idle"] * 4


@pytest.fixture(scope="module")
def panel(four: Notebook) -> Cell:
    return four.run("%distributed panel")


def _said(panel: Cell) -> str:
    """The panel's sentence, in the copy that the notebook's file has."""
    as_of, said = panel.lines[1].split(", when this copy was made: ", 1)
    assert re.fullmatch(r"As of \d{4}-\d\d-\d\d \d\d:\d\d:\d\d", as_of), "the world may be gone when it is read"
    return said


def _states(table: str) -> list[str]:
    return re.findall(r"^\d  .*? (idle|waiting|running|failed|dead) ", table, re.MULTILINE)


def test_a_hang_is_told_until_the_next_cell_begins(four: Notebook, panel: Cell) -> None:
    four.run(HANGS, fails=True)
    assert _states(panel.text) == ["failed", "idle", "failed", "failed"]
    # A slow rank may have been on its way yet, for rank 1 would never come.
    assert re.match(r"ranks? [\d,-]*1\b did not reach barrier #\d+; ", _said(panel)), panel.lines[1]
    assert re.search(r"^1 .* did not reach barrier #\d+$", panel.text, re.MULTILINE)
    assert ": HangError: barrier #" in panel.text
    told = four.run("%distributed status")
    assert told.lines[:2] == [panel.lines[0], _said(panel)]
    assert told.text.count("did not reach barrier") == panel.text.count("did not reach barrier")
    four.run("%%distributed -r 1\n1")
    assert _states(panel.text) == IDLE
    assert "HangError" not in panel.text
    assert "barrier" not in panel.text


def test_a_cell_that_took_long_is_not_running_when_it_has_ended(four: Notebook, panel: Cell) -> None:
    four.run("%%distributed\nimport time\ntime.sleep(1.5)\nall_reduce(1)")
    assert _said(panel) == "all ranks idle"


HELD = """
import threading, time
from nbcomm.notebook.session import registry
session = registry.current()
picture, settle, told = session._picture, session.panel.settle, threading.Event()
def held(views):
    seen = picture(views)
    if threading.current_thread().name == "nbcomm-watch" and any(view.state == "running" for view in views):
        told.wait(3)
    return seen
def late():
    told.set()
    time.sleep(0.5)
    settle()
session._picture, session.panel.settle = held, late
"""


def test_what_the_watch_saw_before_the_end_does_not_come_after_it(four: Notebook, panel: Cell) -> None:
    four.run(HELD)
    try:
        four.run("%%distributed\nimport time\ntime.sleep(1)")
        assert _states(panel.text) == IDLE
    finally:
        four.run("session._picture, session.panel.settle = picture, settle")


def test_what_was_healed_is_told_no_more(four: Notebook, panel: Cell) -> None:
    four.run(DIES, fails=True)
    assert _said(panel).startswith("rank 1 was killed by SIGKILL · 3 others were stopped because of it")
    four.run("%distributed heal")
    assert _said(panel) == "all ranks idle"
    assert "barrier" not in panel.text
    assert "SIGKILL" not in panel.text


def test_it_tells_what_the_status_does(four: Notebook, panel: Cell) -> None:
    four.run("%%distributed\n1")
    four.run("%%distributed\n1 / (rank - 2)", fails=True)
    for shown in (panel.text, four.run("%distributed status").text):
        assert "rank 2: ZeroDivisionError: division by zero" in shown
        assert _states(shown) == ["idle", "idle", "failed", "idle"]
    four.run("%%distributed\n1")
    for shown in (panel.text, four.run("%distributed status").text):
        assert "ZeroDivisionError" not in shown


def late(run: str) -> str:
    """A cell in which rank 1 comes last; ``run`` is another text each time."""
    return "%%distributed" + comes_last(1, "dist.barrier(async_op=True)", run)


def test_the_time_of_a_cell_stands_below_it_while_that_is_on(four: Notebook) -> None:
    assert "took" not in four.run(late("before")).text
    assert "below each cell" in four.run("%distributed time").text
    assert four.run("%distributed time on").text == "The run time of each cell is shown below it.\n"
    (line,) = four.run(late("while it is on")).lines
    assert re.match(
        r"took \d+(\.\d+)? s · \d+ % of it waiting for other ranks · rank 1 came last in the only ", line
    ), line
    assert re.search(
        r"^took \d+(\.\d+)? m?s$", four.run("%%distributed\n1 / (rank - 2)", fails=True).text, re.MULTILINE
    )
    assert "took" not in four.run("%%distributed -r 9\n1", fails=True).text
    assert four.run("%%distributed --quiet\n1").text == ""
    four.run("%distributed time off")
    assert "took" not in four.run(late("afterwards")).text
    status = four.run("%distributed status").text
    assert re.search(r"^the others waited for rank 1 in \d of the last \d+ cells$", status, re.MULTILINE), status


@pytest.mark.parametrize("reduce", ["dist.all_reduce", "all_reduce"])
def test_what_a_rank_did_not_wait_for_is_no_waiting(four: Notebook, tmp_path: Path, reduce: str) -> None:
    four.run("%distributed time on")
    file = str(tmp_path / "arrived")
    line = four.run(
        "%%distributed\nimport os, time\n"
        "if rank == 1: time.sleep(0.6)\n"
        f"begun = {reduce}(torch.ones(4), async_op=True)\n"
        "ended = getattr(begun, 'done', None) or begun.is_completed\n"
        "while rank == 1 and not ended(): time.sleep(0.01)\n"  # a thread of its own may not have called yet
        f"if rank == 1: open({file!r}, 'w').close()\n"
        f"while not os.path.exists({file!r}): time.sleep(0.01)\n"
        "begun.wait();"
    ).lines[-1]
    four.run("%distributed time off")
    assert line.startswith("took ")
    assert "rank 1" not in line
