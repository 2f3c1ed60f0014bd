"""Every notebook of the repository runs from top to bottom, in a kernel of its own with real ranks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch

from .playing import NOTEBOOKS, SHOWN, played

RIGHT = {"02_collectives": "[0] Right, on every rank.", "03_deadlocks": "[0-1] Right."}
WRONG = {
    "02_collectives": "[0] Not yet; the ranks on which it is wrong: 0, 1, 2, 3.",
    "03_deadlocks": "[0-1] Not yet: it is not what the other has.",
}


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("no_processes_left")
@pytest.mark.parametrize(
    "path",
    # Those with exercises are played below, with answers.
    [pytest.param(path, marks=[pytest.mark.nightly] * (path.stem in RIGHT)) for path in NOTEBOOKS],
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


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("no_processes_left")
@pytest.mark.parametrize("name", RIGHT)
def test_the_answers_to_the_exercises_are_right_and_others_are_told(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook = nbformat.read(next(path for path in NOTEBOOKS if path.stem == name), as_version=4)
    cells = {cell.id: cell for cell in notebook.cells}
    exercises = [cell.removesuffix("-try") for cell in cells if cell.endswith("-try")]
    assert len(exercises) >= (10 if name == "02_collectives" else 1)
    for exercise in exercises:
        found = re.search(r"```python\n(.*?)\n```", cells[f"{exercise}-answer"].source, re.DOTALL)
        assert found, exercise
        cell = cells[f"{exercise}-try"]
        dots = re.compile(r"^answer = \.\.\..*$", re.MULTILINE)
        assert dots.search(cell.source), exercise
        assert found[1] not in cell.source
        wrong = nbformat.v4.new_code_cell(dots.sub("answer = (-1, rank)", cell.source))
        right = nbformat.v4.new_code_cell(dots.sub(lambda _, answer=found[1]: answer, cell.source))
        here = notebook.cells.index(cell) + 1
        notebook.cells[here:here] = [wrong, right]
    path = tmp_path / f"{name}.ipynb"
    nbformat.write(notebook, path)
    lines = played(path, capsys).splitlines()
    assert lines.count(RIGHT[name]) == len(exercises)
    assert lines.count(WRONG[name]) == len(exercises)


def test_an_answer_is_right_whatever_kind_of_number_it_is_and_is_never_told() -> None:
    notebook = nbformat.read(next(path for path in NOTEBOOKS if path.stem == "02_collectives"), as_version=4)
    source = next(cell.source for cell in notebook.cells if "def check" in cell.source)
    names: dict[str, Any] = {"torch": torch}
    exec(source.removeprefix("%%distributed"), names)  # noqa: S102 - it is the notebook's own
    for right, others in {
        42: ["42", 41, None, ..., [42, 42], torch.tensor([42, 42])],
        2.0: ["2.0", 2.1],
        "a b": ["a", None, 3],
        None: [0, "None", False],
    }.items():
        assert names["is_right"](right, right)
        assert not [other for other in others if names["is_right"](other, right)]
    for answer in (42.0, torch.tensor(42), torch.tensor([42.0])):
        assert names["is_right"](answer, 42)
    for answer in ([1, 2], (1, 2), torch.tensor([1, 2]), [1.0, torch.tensor(2)]):
        assert names["is_right"](answer, [1, 2])
    for answer in ([1], [2, 1], "12", 12, None, torch.tensor(1)):
        assert not names["is_right"](answer, [1, 2])
    said: list[str] = []
    names.update(all_gather=lambda here, _: [here, True], any_rank=bool, rank_print=said.append)
    names["check"](43, 42)
    assert said == ["Not yet; the ranks on which it is wrong: 0."]
