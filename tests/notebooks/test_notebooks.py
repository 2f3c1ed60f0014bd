"""Every notebook of the repository runs from top to bottom, in a kernel of its own with real ranks."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch

from nbcomm import cli

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))

SHOWN = {
    "01_first_steps": [
        r"\[0\] rank 0 of 4, on \S+, in process \d+",
        r"\[3\] rank 3 of 4, on \S+, in process \d+",
        r"\[2\] tensor\(\[2\., 2\.\]\S*\)",
        r"\[0-3\] tensor\(\[6\., 6\.\].*\)",
        r"all_reduce · sum · #1: .*",
        r"rank 3: \[3 3\] → \[6 6\]",
        r"\[3\] tensor\(\[30\., 30\.\].*\)",
        r"\[0-3\] \{'learning_rate': 0\.5, 'steps': 20\}",
        r"\[1\] 'page 1'",
        r"\[0\] \[0, 10, 20, 30\]",
        r"\[0-3\] tensor\(\[ 0, 10, 20, 30\]\)",
        r"\[0\] tensor\(24\)",
        r"\[2\] only here: rank 2",
        r"\[0\] 4 ranks are listening",
        r"\[100, 101, 102, 103\]",
        r"\[0\] step  0  loss \d\.\d{4}",
        r"\[0\] step 19  loss 0\.\d{4}",
        r"\[0-3\] \[\d\.\d+, \d\.\d+\]",
        r".*ValueError: something is wrong with my data",
    ],
    "02_collectives": [
        r"\[3\] rank 3 came after \d+\.\d s",
        r"\[0-3\] True",
        r"\[0\] Not yet: write something in place of the three dots\.",
        r"\[0-3\] \{'learning_rate': 0\.1, 'layers': \[64, 64\]\}",
        r"\[0-3\] 'hello from rank 2'",
        r"\[3\] 'page 3'",
        r"\[1\] tensor\(\[3, 4, 5\]\)",
        r"\[0\] \{'rank': \[0, 1, 2, 3\].*",
        r"\[0\] tensor\(\[ 6\., 60\.\]\)",
        r"\[0-3\] \(tensor\(\[ 1\.5000, 15\.0000\]\), 3\)",
        r"\[2\] \(14, 7\)",
        r"\[1,3\] \[1, 3\]",
        r"\[0-3\] equal before: False",
        r"\[0-3\] equal after:  True",
        r"\[0\] I have downloaded it",
        r"\[1-3\] it is there already",
    ],
    "03_deadlocks": [
        r".*all_reduce #\d+ of the world \(float32 \(4,\), sum; .*ranks? [\d,-]+ waits? in it, but rank 1 has f.*",
        r"\[0\] \(0, 4\)",
        r"\[3\] \(30, 4\)",
        r".*ZeroDivisionError: float division by zero.*",
        r".*rank 2 failed \(ZeroDivisionError: float division by zero\).*",
        r".*send #\d+ to rank \d .* can never complete.*",
        r"\[0\] 'from 3'",
        r".*MismatchError: all_reduce #\d+ of the world is not the same on all ranks: .*",
        r".*can never complete: .* rank 3 has finished the cell.*",
        r"\[0-3\] loss \d\.\d{4}",
        r"\[0-3\] equal on all ranks: True",
        r".*the group of ranks 0-1.*rank 1 waits in barrier.*",
        r".*no rank can send it any more: ranks 1-3 have finished the cell.*",
        r"\[0-1\] Not yet: write something in place of the three dots\.",
        r".*Rank 1 was killed by SIGKILL.*",
        r"Rank 1 is back after \d+\.\d s, without variables; the others kept theirs\.",
        r"\[1\] \('nothing', 4\)",
        r"\[2\] \(20, 4\)",
    ],
    "04_pictures": [
        r"broadcast · src 0: .*",
        r"rank 3: – → 'hello'",
        r"rank 0: \[1 10\] → \[4 40\]",
        r"rank 1: 'b0' \| 'b1' \| 'b2' → 'a1' \| 'b1' \| 'c1'",
        r"\[0-3\] tensor\(\[60, 64, 68, 72\]\)",
        r"rank 2: \[20\] \| \[21\] \| \[22\] \| \[23\] → \[68\]",
        r"rank 0: \[60\] → \[60\] \| \[64\] \| \[68\] \| \[72\]",
        r"rank 0: \[0 1 2 3\] → \[60 64 68 72\]",
        r"broadcast · src 0 · #\d+: .*",
        r"rank 3: \[0\.75 0\.75 0\.25\] → \[1\.5 1\.5 1\]",
        r"\[0-3\] the same as on one rank: True",
        r"rank 2 came last, \d\.\d\d s after the first\.",
        r"Trace of 3 collectives and messages written to straggler\.json.*",
        r"\[\d\.\d, \d\.\d, \d\.\d, \d\.\d\]",
        r"ranks? [\d,-]*3 did not arrive\.",
        r".*HangError: gather #\d+ of the world .*",
        r"all_reduce · sum",
        r"Not yet: step through both, and write what you have counted\.",
    ],
}
"""Lines that a reader sees, as patterns for whole lines, in this order. A hang is told as soon as it is certain, by one
rank that has finished: of the others, those that are slow have not called yet."""


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("no_processes_left")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_it_says(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = io.StringIO()
    assert cli.play(path, page) == 0, page.getvalue() + capsys.readouterr().err
    lines = iter(page.getvalue().splitlines())
    for pattern in SHOWN.get(path.stem, []):
        assert any(re.fullmatch(pattern, line) for line in lines), (
            f"{pattern} is not in, or not here:\n{page.getvalue()}"
        )


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not [cell.id for cell in code if cell.outputs or cell.execution_count is not None]


def test_every_notebook_that_has_expectations_is_there() -> None:
    assert SHOWN.keys() <= {path.stem for path in NOTEBOOKS}


RIGHT = {"02_collectives": "[0] Right, on every rank.", "03_deadlocks": "[0-1] Right."}
WRONG = {
    "02_collectives": "[0] Not yet; the ranks on which it is wrong: 0, 1, 2, 3.",
    "03_deadlocks": "[0-1] Not yet: it is not what the other has.",
}


@pytest.mark.timeout(300)
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
        cell.source = dots.sub(lambda _, answer=found[1]: answer, cell.source)
        notebook.cells.insert(notebook.cells.index(cell), wrong)
    page, path = io.StringIO(), tmp_path / "answered.ipynb"
    nbformat.write(notebook, path)
    assert cli.play(path, page) == 0, page.getvalue() + capsys.readouterr().err
    lines = page.getvalue().splitlines()
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
