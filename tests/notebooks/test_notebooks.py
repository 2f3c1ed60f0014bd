"""Every notebook of the repository runs from top to bottom, in a kernel of its own with real ranks."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from .playing import NOTEBOOKS, SHOWN, played


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("no_processes_left")
@pytest.mark.parametrize(
    "path",
    # The one with puzzles is played by test_lessons.py, with them solved.
    [pytest.param(path, marks=[pytest.mark.nightly] * (path.stem == "02_collectives")) for path in NOTEBOOKS],
    ids=lambda path: path.stem,
)
def test_a_notebook_runs_and_shows_what_it_says(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    played(path, capsys)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not [cell.id for cell in code if cell.outputs or cell.execution_count is not None]


def test_every_notebook_that_has_expectations_is_there() -> None:
    assert SHOWN.keys() <= {path.stem for path in NOTEBOOKS}
