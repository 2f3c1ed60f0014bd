"""The day of a learner: after each mishap and each mistake, the page says what happened and what to do next, once."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import Notebook, Server
from .test_story import LOAD
from .test_world import START

STEPS = """%%distributed
import pathlib, time
for step in range(3):
    print("step", step)
while not pathlib.Path("go-day").exists():
    time.sleep(0.02)
kept = 10 * rank
print("the last step")"""
DIES = """%%distributed
import os
if rank == 3:
    os.kill(os.getpid(), 9)
barrier()"""
HEAL = "%distributed heal"
WORKS = "%%distributed\nglobals().get('kept'), all_reduce(1)"
ATTACH = "%distributed attach"

MISTAKES = [
    (
        "%load_ext nbcomm\n%%distributed\nall_reduce(rank)",
        "What is above it has run: put %%distributed, with what is below it, into a cell of its own.",
    ),
    ("%%distributed print(rank)", "write print(rank) on the line below it. Nothing was run"),
    ("%% distributed\nrank", "Write %%distributed, without a blank."),
    ("%%distributed start -n 2", "type %distributed start -n 2 in a cell of its own."),
    ("%distributed frobnicate", "The most used are start, status, push, pull, who, diff and stop"),
    (
        "%%distributed\ntotals = gather(rank)\nprint(totals[0])",
        "on ranks 1-3 gather(rank) is None: gather gives its result on rank 0 (dst) only.",
    ),
    ("%%distributed\nallreduce(torch.ones(2))", "Did you mean all_reduce?"),
    ("%%distributed\nbroadcast(torch.ones(2), root=0)", "did you mean src?"),
    ("%%distributed\nall_reduce(torch.ones(2), op=max)", 'write "max", in quotes.'),
    ("%%distributed\nrank()", "rank is a value, and no function: write rank, without parentheses."),
    ("all_reduce(1)", "all_reduce exists only on the ranks: put %%distributed on the first line of this cell."),
    (
        "%%distributed\nif rank != 1:\n    all_reduce(torch.ones(4))",
        "Let rank 1 call it, too: if it is inside an if, take it out.",
    ),
    (
        "%%distributed\nrank = 5",
        "your variable rank hides nbcomm's rank; type del rank to undo this.",
    ),
    (
        "log = open('log.txt', 'w')\ndef note(line): log.write(line)\n%distributed push note",
        "note (function) uses log (open file), and cannot travel between the notebook and the ranks",
    ),
]


LOADS, STARTS, RELOADED, DIED, HEALED, WORKED, ATTACHED, FIRST = range(8)
"""The places of the cells; from FIRST on are the mistakes, and behind them WORKS again."""


def text_of(target: Any) -> str:
    """Return what an element shows, with each line break as a blank: a sentence may go over several lines."""
    return re.sub(r"\s+", " ", target.inner_text())


class Day:
    """A notebook in which things go wrong."""

    def __init__(self, book: Notebook) -> None:
        self.book, self.page = book, book.page
        self.panel = book.page.locator(".nbcomm-live").first
        self.missed = book.page.locator(".nbcomm-missed")

    def says(self, cell: int, sentence: str, *, run: bool = True) -> str:
        """Run a cell, and return its output, which has a sentence once."""
        if run:
            self.book.start(cell)
        pattern = re.compile(r"\s+".join(map(re.escape, sentence.split())))
        self.book.cell(cell).locator(".jp-OutputArea-output").filter(has_text=pattern).first.wait_for()
        self.book.idle()
        shown = text_of(self.book.cell(cell).locator(".jp-Cell-outputArea"))
        assert shown.count(sentence) == 1, shown
        return shown

    def works(self, cell: int, kept: str) -> None:
        """Run a cell that shows what is kept, and calls a collective."""
        self.book.run(cell)
        assert f"{kept}, 4)" in text_of(self.book.cell(cell))

    def restart_kernel(self) -> None:
        self.page.evaluate("void jupyterapp.commands.execute('kernelmenu:restart')")
        self.page.locator(".jp-Dialog .jp-mod-warn").click()
        self.panel.filter(has_text="The kernel of this panel has ended.").wait_for()
        assert "%distributed attach" in text_of(self.panel)
        self.book.idle()

    def load_again_in(self, cell: int, printed: str, go: Path) -> None:
        """Load the page again while a cell runs, which then ends."""
        self.book.save()
        self.book.start(cell)
        self.book.cell(cell).locator(".jp-OutputArea-output").filter(has_text=printed).wait_for()
        self.book.save()
        self.page.reload()
        self.page.wait_for_selector(".jp-Notebook .jp-CodeCell .cm-content")
        go.touch()
        self.missed.wait_for()
        self.book.idle()


@pytest.mark.timeout(240)
def test_the_day_of_a_learner(notebook: Callable[..., Notebook], server: Server) -> None:
    cells = [LOAD, START, STEPS, DIES, HEAL, WORKS, ATTACH, *(cell for cell, _ in MISTAKES), WORKS]
    day = Day(book := notebook("day.ipynb", *cells, viewport={"width": 1280, "height": 1000}))
    day.page.set_default_timeout(60_000)
    book.open()
    book.run(LOADS)
    book.run(STARTS)
    day.panel.filter(has_text="all ranks idle").wait_for()

    day.load_again_in(RELOADED, "step 2", server.root / "go-day")
    assert text_of(day.page.locator("body")).count("This page missed output of In [3]") == 1
    day.missed.get_by_role("button", name="show it").click()
    day.says(RELOADED, "[0-3] the last step", run=False)
    day.missed.wait_for(state="hidden")

    told = day.says(DIED, "Type %distributed heal to put a new process in its place.")
    assert told.count("SIGKILL") == 1, "said once in the cell"
    day.panel.locator(".headline").filter(has_text="rank 3 was killed by SIGKILL").wait_for()
    day.says(HEALED, "Rank 3 is back")
    day.works(WORKED, "[3] (None")

    day.restart_kernel()
    day.says(LOADS, "An earlier kernel of this notebook left 4 ranks on cpu, with their variables.")
    book.run(ATTACHED)
    day.works(WORKED, "[1] (10")

    for place, (_, sentence) in enumerate(MISTAKES, FIRST):
        day.says(place, sentence)
    day.works(FIRST + len(MISTAKES), "[1] (10")
    assert book.errors == []


@pytest.mark.timeout(180)
def test_a_second_notebook_takes_the_world_of_the_first_by_its_name_only(notebook: Callable[..., Notebook]) -> None:
    first = notebook("first.ipynb", LOAD, START, "%%distributed\nkept = 10 * rank")
    first.open()
    for cell in range(3):
        first.run(cell)
    beside = notebook("beside.ipynb", LOAD, ATTACH, "%%distributed\nkept", own_page=True)
    beside.page.set_default_timeout(60_000)
    beside.open()
    beside.run(0)
    beside.start(1)
    refused = beside.cell(1).locator(".jp-OutputArea-output").filter(has_text="StateError")
    refused.filter(has_text="in use").wait_for()
    beside.idle()

    first.page.evaluate("void jupyterapp.commands.execute('kernelmenu:restart')")
    first.page.locator(".jp-Dialog .jp-mod-warn").click()
    first.idle()
    beside.start(1)
    refused.filter(has_text="first.ipynb").wait_for()
    beside.idle()
    found = re.search(r"%distributed attach \w+", text_of(refused))
    assert found, text_of(refused)
    beside.cell(1).locator(".cm-content").click()
    beside.page.keyboard.press("Control+a")
    beside.page.keyboard.type(found[0])
    beside.run(1)
    beside.run(2)
    assert "[1] 10" in text_of(beside.cell(2))
    assert first.errors == beside.errors == []
