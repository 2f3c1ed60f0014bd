"""A learner's functions, cells and predictions are checked on real ranks: solutions pass, and mutants do not."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nbcomm.lessons.courses import puzzles
from nbcomm.lessons.puzzle import FunctionPuzzle

from ..lessons.answers import MUTANTS, cell, solved
from .notebook import Notebook, with_ranks

_FUNCTIONS = {puzzle.name: puzzle for _, puzzle in puzzles() if issubclass(puzzle, FunctionPuzzle)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where this learner's progress is."""
    return tmp_path_factory.mktemp("learner")


@pytest.fixture(scope="module")
def notebook(folder: Path) -> Iterator[Notebook]:
    """A notebook with four ranks on the CPU."""
    with with_ranks(folder, 4, NBCOMM_CLASS=str(folder / "class"), NBCOMM_LEARNER="Åsa / 7") as notebook:
        yield notebook


def _check(notebook: Notebook, puzzle: str, more: str = "") -> str:
    return notebook.run(f"%distributed check {puzzle} {more}", 90).text


@pytest.mark.parametrize("puzzle", _FUNCTIONS)
def test_the_solution_is_right(notebook: Notebook, puzzle: str) -> None:
    notebook.run(f"%%distributed\n{solved()[puzzle]}")
    said = " ".join(_check(notebook, puzzle).split())
    trials = _FUNCTIONS[puzzle].trials
    assert said.startswith(f"✓ {puzzle}: Right for {trials} inputs on 4 ranks. Yours: "), said
    assert said.endswith("; the best known is the same.")


@pytest.mark.parametrize(
    ("puzzle", "body", "said"), [(puzzle, *mutant) for puzzle, mutants in MUTANTS.items() for mutant in mutants]
)
def test_a_mutant_is_refused_with_the_reason(notebook: Notebook, puzzle: str, body: str, said: str) -> None:
    argument = _FUNCTIONS[puzzle].asks.partition("(")[2].rstrip(")")
    notebook.run(cell(puzzle, argument, body))
    text = _check(notebook, puzzle)
    assert text.startswith(f"✗ {puzzle}: ")
    assert " ".join(said.split()) in " ".join(text.split())


def test_each_function_has_two_mutants_or_more() -> None:
    assert set(MUTANTS) == set(_FUNCTIONS)
    assert min(map(len, MUTANTS.values())) > 1


def test_a_verdict_is_judged(notebook: Notebook) -> None:
    assert "✗ blame_rank_2: The last cell ended well" in " ".join(_check(notebook, "blame_rank_2").split())
    notebook.run("%%distributed\nif rank == 1: raise ValueError\nbarrier()", fails=True)
    assert "✗ blame_rank_2: " in _check(notebook, "blame_rank_2")
    notebook.run("%%distributed\nif rank != 2: barrier()", fails=True)
    assert _check(notebook, "blame_rank_2") == "✓ blame_rank_2: Your cell has 1 line; the shortest has 1.\n"


def test_a_prediction_is_compared_with_the_run(notebook: Notebook) -> None:
    assert "You have not predicted yet." in _check(notebook, "part_of_rank_2")
    notebook.run("%distributed predict part_of_rank_2 2")
    assert "Now run the experiment" in _check(notebook, "part_of_rank_2")
    notebook.run("%%distributed\nparts = all_gather(reduce_scatter(torch.arange(4)), mode='cat')")
    assert "You predicted 2, but the run shows 8." in _check(notebook, "part_of_rank_2")


def test_a_rank_that_ends_in_a_check_is_told_and_the_next_check_is_good(notebook: Notebook) -> None:
    notebook.run(cell("gather_all", "value", "import os\nif rank == 1: os._exit(3)\nbarrier()"))
    assert "Rank 1 ended with exit code 3" in " ".join(_check(notebook, "gather_all").split())
    notebook.run("%distributed heal")
    notebook.run(f"%%distributed\n{solved()['gather_all']}")
    assert _check(notebook, "gather_all").startswith("✓ gather_all")


def test_a_function_of_the_notebook_itself_is_told_and_one_of_the_ranks_is_checked(notebook: Notebook) -> None:
    own = "The notebook itself has a reshard, which no rank can see: write %%distributed above it, and run it again."
    notebook.run("def reshard(rows, ranks):\n    return rows")
    assert own in _check(notebook, "reshard")
    notebook.run("%%distributed\ndef reshard(rows, ranks):\n    return rows")
    assert "The notebook itself" not in _check(notebook, "reshard")
    notebook.run(solved()["reshard"])
    assert own in _check(notebook, "reshard")


def test_an_outcome_is_a_value_as_nbgrader_and_otter_need_it(notebook: Notebook) -> None:
    notebook.run("%%distributed\ndef sum_all(tensor):\n    return tensor")
    failed = notebook.run("outcome = %distributed check sum_all\nassert outcome, outcome", fails=True)
    assert "AssertionError: ✗ sum_all: Wrong on " in failed.error_text
    notebook.run(f"%%distributed\n{solved()['sum_all']}")
    assert notebook.run("outcome = %distributed check sum_all\nassert outcome, outcome\nbool(outcome)").text == "True\n"


def test_the_pages_course_of_a_teacher_works(notebook: Notebook, folder: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "lessons.md").read_text()
    (course,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "class SumAll" in block]
    (folder / "course.py").write_text(course)
    own = "--course course.py"
    assert notebook.run(f"%distributed check {own}").lines[0] == "Lesson 1: our own collectives"
    notebook.run("%%distributed\ndef sum_all(number):\n    return sum(all_gather(number))")
    assert "where 1 all_reduce is asked for" in " ".join(_check(notebook, "sum_all", own).split())
    notebook.run("%%distributed\ndef sum_all(number):\n    return all_reduce(number)")
    assert "the best known is the same" in " ".join(_check(notebook, "sum_all", own).split())
    notebook.run("%%distributed\nif rank != 1: barrier()", fails=True)
    assert _check(notebook, "blame_rank_1", own).startswith("✓ blame_rank_1")
    notebook.run(f"%distributed predict total_of_ranks 6 {own}")
    notebook.run("%%distributed\ntotal = all_reduce(rank)")
    assert "✓ total_of_ranks: You predicted 6, and the run shows 6." in _check(notebook, "total_of_ranks", own)


def test_progress_survives_a_kernel_restart_and_the_teacher_sees_it(notebook: Notebook, folder: Path) -> None:
    notebook.restart()
    notebook.run("%load_ext nbcomm")
    notebook.run("%distributed attach", 60)
    told = notebook.run("%distributed check").text
    assert "  ✓ sum_all" in told
    assert "  ≠ part_of_rank_2" in told
    assert "predicted 2" in told
    said = notebook.run(f"!{sys.executable} -m nbcomm.cli class class --once").text
    lines = (folder / "class" / "Åsa___7.jsonl").read_text().splitlines()
    assert {"at", "puzzle"} <= json.loads(lines[0]).keys()
    assert "Åsa___7" in said
    assert "Mistakes made most: " in said


@pytest.mark.parametrize("body", ["while rank == 1:\n    pass\nbarrier()", "import time\ntime.sleep(60)"])
def test_a_function_that_does_not_end_is_interrupted(notebook: Notebook, body: str) -> None:
    notebook.run("from nbcomm.notebook.lessons import checking\nchecking.TIME = 1.5")
    notebook.run(cell("gather_all", "value", body))
    assert "It did not end within 1.5 s, and was interrupted." in _check(notebook, "gather_all")
    assert notebook.run("%%distributed\nall_reduce(1)").text == "[0-3] 4\n"


def test_a_function_that_asks_for_input_is_no_reason_to_wait_for_somebody(notebook: Notebook) -> None:
    notebook.run("%%distributed\ndef gather_all(value):\n    return input('Which one? ')")
    said = _check(notebook, "gather_all").flat
    assert "It raised an error on ranks 0-3. EOFError: Nobody is asked for input here" in said
