"""What is seen where a kernel or a front end lacks something: docs/elsewhere.md tells, and nothing may be lost."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from nbcomm.notebook.display.frontends import NO_UPDATES

from .notebook import Cell, Notebook, started

PANEL = {"text/html", "text/plain"}
BARS = """%%distributed
from tqdm.notebook import tqdm
for _ in tqdm(range(3), bar_format="{bar} {n}/{total}"): pass
'end'"""
SLIDER = "%%distributed\nimport ipywidgets\nipywidgets.IntSlider(rank)"
WITHOUT = {
    "anywidget": "import sys; sys.modules['anywidget'] = None",
    "comms": "import comm\ndef refuse(*_, **__): raise RuntimeError('no comms here')\ncomm.create_comm = refuse",
}


class Deaf(Notebook):
    """A front end that ignores ``update_display_data``, as Jupyter's console does."""

    def _update(self, content: dict[str, Any]) -> None:
        """Nothing."""


@pytest.mark.timeout(150)
@pytest.mark.parametrize("what", WITHOUT)
def test_without_the_panel_is_a_table_and_cells_run(open_notebook: Callable[..., Notebook], what: str) -> None:
    notebook = open_notebook(WITHOUT[what])
    start = notebook.run("%distributed start -n 2", timeout=120)
    *_, panel = (output for output in start.outputs if output["kind"] == "display_data")
    assert set(panel["data"]) == PANEL
    assert "the panel is a plain table in this notebook" in start.stream("stderr")
    assert start.stream("stderr").count("\n") == 1

    assert notebook.run("%%distributed\nall_reduce(rank)").text == "[0-1] 1\n"
    assert notebook.run(BARS).lines == ["[0] |██████████| 3/3", "[1] |██████████| 3/3", "[0-1] 'end'"]
    assert notebook.run(SLIDER).lines == ["[0] IntSlider: 0", "[1] IntSlider: 1"]
    explorer = notebook.run("import nbcomm; nbcomm.explore()")
    assert "all_reduce" in explorer.text
    assert explorer.stream("stderr") == ""
    notebook.run("%%distributed\n1 / (rank - 1)", fails=True)
    assert "rank 1 failed" in panel["data"]["text/plain"]
    notebook.run("%distributed stop")
    assert "stopped; this was the last state" in panel["data"]["text/plain"]


@pytest.mark.timeout(150)
def test_without_updates_nothing_is_lost(tmp_path: Path) -> None:
    with started(Deaf(str(tmp_path), **{NO_UPDATES: "1"}), 2) as deaf:
        *_, start = deaf.cells.values()
        assert "ready in" in start.text
        assert "Starting:" not in start.text
        slow = (
            "%%distributed\nimport time\nfor i in range(3):\n    print('step', i, rank); time.sleep(0.3)\n'end', rank"
        )
        assert by_rank(deaf.run(slow)) == [
            [*(f"step {i} {rank}" for i in range(3)), f"('end', {rank})"] for rank in range(2)
        ]
        assert by_rank(deaf.run("%%distributed\nhandle = display('one', display_id=True)")) == [["'one'"]] * 2
        above = [*deaf.cells.values()][-1]
        assert deaf.run("%%distributed\nhandle.update('two')").text == ""  # it belongs below the cell that shows it
        # While one rank is late, what each has is shown: the late one's 'one' once more.
        assert [[value for value, _ in groupby(shown)] for shown in by_rank(above)] == [["'one'", "'two'"]] * 2
        bars = deaf.run("%%distributed\nfrom tqdm.auto import tqdm\nfor _ in tqdm(range(9), bar_format='{n}'): pass")
        assert by_rank(bars) == [["9"]] * 2
        assert by_rank(deaf.run(SLIDER)) == [["IntSlider: 0"], ["IntSlider: 1"]]


def by_rank(cell: Cell) -> list[list[str]]:
    """The lines of ranks 0 and 1: where nothing shown can be replaced, a late rank's stand apart, and below."""
    labelled = [line.partition("] ") for line in cell.lines]
    return [[text for label, _, text in labelled if label in (f"[{rank}", "[0-1")] for rank in range(2)]


@pytest.mark.timeout(150)
def test_without_an_input_box_questions_are_errors_that_say_so(open_notebook: Callable[..., Notebook]) -> None:
    notebook = open_notebook("%distributed start -n 2")

    def says(code: str, prompt: str) -> None:
        cell = notebook.finish(notebook.submit(code, stdin=False), 30)
        assert f"Rank 1 asks for input ({prompt}), but this front end has no input box" in cell.error_text, cell.text

    says("%%distributed\nif rank: input('Name? ')\nall_reduce(1)", "Name?")
    says("%%distributed\nimport getpass\nif rank: getpass.getpass('Key? ')", "Key?")
    says("%%distributed\nif rank: breakpoint()\nvalue = rank", "ipdb>")
    notebook.finish(notebook.submit("%%distributed\n1 / (rank - 1)", stdin=False))
    says("%distributed debug 1", "ipdb>")
    assert notebook.run("%%distributed\nall_reduce(rank)").text == "[0-1] 1\n"
