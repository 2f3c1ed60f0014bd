"""One notebook file, unchanged, in everything that runs notebooks: each cell shows the same."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from nbcomm.rank_spec import parse
from tests.world.notebook import Notebook
from tests.world.test_scripts import torchrun

_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_READY = re.compile(r"ready .*", re.DOTALL)
"""How long a start took, and the panel below it: its processes and times are others each time."""

# The code of each cell, and what it shows.
CELLS = {
    "%load_ext nbcomm": "",
    "%distributed start -n 2": "2 ranks on cpu, gloo, ready",
    "%%distributed\nx = torch.full((2,), float(rank), device=device)\nall_reduce(x)": "[0-1] tensor([1., 1.])",
    "%%distributed\nprint('hello from', rank)": "[0] hello from 0\n[1] hello from 1",
    "%%distributed -r 1\nimport asyncio\nawait asyncio.sleep(0.01, rank)": "[1] 1",
    "%%local\nsettings = {'lr': 0.1}\nsettings": "{'lr': 0.1}",
    "%distributed push settings": "",
    "%%distributed\nsettings['lr'] * (rank + 1)": "[0] 0.1\n[1] 0.2",
    "%%distributed\nif rank: barrier()": "CellError",
    "%%distributed\n1 / (1 - rank)": "[0] 1.0\nCellError",
    "%%distributed\nmine = rank + 1": "",
    "%distributed pull mine": "",
    "%%local\nimport asyncio\nawait asyncio.sleep(0.01)\nsum(mine)": "3",
    "# That was all.": "",
    "%distributed save same.py": (
        "same.py has 5 cells: torchrun --nproc-per-node 2 same.py\nLeft out: In [9] (failed), In [10] (failed)."
    ),
    "%distributed stop": "Stopped 2 ranks on cpu.",
}

_LINE = re.compile(r"^\[([\d,-]+)\] (.*)$", re.MULTILINE)

Runner = Callable[[Path], list[str]]


def shown(outputs: list[dict[str, Any]]) -> str:
    """What a reader sees of a cell's outputs, without what is different each time."""
    texts = []
    for output in outputs:
        text = output.get("text") or output.get("data", {}).get("text/plain", "") or output.get("ename", "")
        texts.append("".join(text).rstrip("\n"))
    return _READY.sub("ready", _COLOUR.sub("", "\n".join(filter(None, texts))))


def in_kernel(name: str) -> Runner:
    """As a front end does it: one cell after the other."""

    def run(path: Path) -> list[str]:
        book = nbformat.read(path, as_version=4)
        notebook = Notebook(str(path.parent), kernel=name)
        try:
            return [shown(notebook.finish(notebook.submit(cell.source), 120).outputs) for cell in book.cells]
        finally:
            notebook.close()

    return run


def by_nbclient(path: Path) -> list[str]:
    from nbclient import NotebookClient

    book = nbformat.read(path, as_version=4)
    NotebookClient(book, timeout=120, kernel_name="python3", resources={"metadata": {"path": path.parent}}).execute()
    return [shown(cell.outputs) for cell in book.cells]


def by_nbconvert(path: Path) -> list[str]:
    made = path.with_name("converted.ipynb")
    command = [sys.executable, "-m", "nbconvert", "--to", "notebook", "--execute", path, "--output", made.name]
    subprocess.run([*command, "--ExecutePreprocessor.kernel_name=nbcomm"], check=True, timeout=150, cwd=path.parent)
    return [shown(cell.outputs) for cell in nbformat.read(made, as_version=4).cells]


def by_papermill(path: Path) -> list[str]:
    import papermill

    made = path.with_name("milled.ipynb")
    with suppress(papermill.PapermillExecutionError):  # it runs to the end, then judges, and knows no such tag
        papermill.execute_notebook(path, made, kernel_name="nbcomm", cwd=path.parent, progress_bar=False)
    cells = nbformat.read(made, as_version=4).cells
    return [shown(cell.outputs) for cell in cells if cell.cell_type == "code"]


RUNNERS: dict[str, Runner] = {
    "the ordinary kernel": in_kernel("python3"),
    "the cluster kernel": in_kernel("nbcomm"),
    "nbclient, in the ordinary kernel": by_nbclient,
    "nbconvert, in the cluster kernel": by_nbconvert,
    "papermill, in the cluster kernel": by_papermill,
}

LEFT = {"nbclient, in the ordinary kernel", "papermill, in the cluster kernel"}
"""The first asks the kernel for the same as the ordinary front end; papermill has a test of its own below."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The notebook's file; cells that fail are marked as Jupyter has it."""
    cells = [
        new_code_cell(code, metadata={"tags": ["raises-exception"]} if "CellError" in text else {})
        for code, text in CELLS.items()
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": kernel}), tmp_path / "same.ipynb")
    return tmp_path / "same.ipynb"


@pytest.mark.usefixtures("prefix")
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "runner", [pytest.param(name, marks=[pytest.mark.nightly] * (name in LEFT)) for name in RUNNERS]
)
def test_each_cell_shows_the_same(path: Path, runner: str) -> None:
    assert RUNNERS[runner](path) == list(CELLS.values())


@pytest.mark.nightly
@pytest.mark.timeout(180)
def test_saved_it_runs_under_torchrun_to_the_same_answers(path: Path) -> None:
    in_kernel("python3")(path)
    in_notebook: list[list[str]] = [[], []]
    for code, here in CELLS.items():
        if code.startswith("%%distributed") and "CellError" not in here:
            for ranks, text in _LINE.findall(here):
                for rank in parse(ranks, 2):
                    in_notebook[rank].append(text)
    assert [len(lines) for lines in in_notebook] == [3, 4]
    for rank, printed in enumerate(torchrun(path.with_name("same.py"), 2)):
        assert [line.removeprefix(f"[{rank}] ") for line in printed.splitlines()] == in_notebook[rank]


@pytest.mark.usefixtures("prefix")
def test_parameters_of_papermill_reach_the_ranks(tmp_path: Path) -> None:
    import papermill

    cells = [
        new_code_cell("lr, name = 0.1, 'default'", metadata={"tags": ["parameters"]}),
        new_code_cell("lr * (rank + 1), name"),
        new_code_cell("all_reduce(lr)"),
    ]
    kernel = {"name": "nbcomm", "display_name": "nbcomm", "language": "python"}
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": kernel}), tmp_path / "in.ipynb")
    made = papermill.execute_notebook(
        tmp_path / "in.ipynb", tmp_path / "out.ipynb", {"lr": 3}, cwd=tmp_path, progress_bar=False
    )
    assert made.cells[1].metadata.tags == ["injected-parameters"]
    assert shown(made.cells[-2].outputs) == "[0] (3, 'default')\n[1] (6, 'default')\n[2] (9, 'default')"
    # One value of all ranks is the cell's result, also in the file: with the cell's number, as in any notebook.
    number = made.cells[-1].execution_count
    # Where the cell takes long, what was shown meanwhile leaves an empty display.
    outputs = [output for output in made.cells[-1].outputs if output.get("data", True)]
    assert outputs == [new_output("execute_result", {"text/plain": "[0-2] 9"}, execution_count=number)]
