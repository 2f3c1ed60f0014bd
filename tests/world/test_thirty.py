"""A class of thirty: each person's notebook has a world of its own, and none of them fails, also ten at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nbcomm.notebook.lessons import class_table

from .notebook import Notebook

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("no_processes_left")]

_PEOPLE, _AT_ONCE = 30, 10

_TO_START = 150.0
"""Seconds for one start: of ten, each imports torch, and two cores do one after the other."""

_SOLVED = """\
%%distributed
def gather_all(value):
    return [broadcast(value, src=source) for source in range(world_size)]"""


def _take_part(folder: Path, number: int, **environment: str) -> None:
    """Do what a person does in a lesson: a collective, a hang, a puzzle; and variables are still there after them."""
    place = folder / f"{number}"
    place.mkdir()
    notebook = Notebook(str(place), **environment)
    try:
        notebook.run("%load_ext nbcomm")
        notebook.run("%distributed start -n 2", timeout=_TO_START)
        assert (
            notebook.run(f"%%distributed\nmine = {number} + rank\nall_reduce(mine)").text == f"[0-1] {2 * number + 1}\n"
        )
        hung = notebook.run("%%distributed\nif rank: barrier()", fails=True)
        assert "HangError" in hung.error_text
        notebook.run(_SOLVED)
        assert "✓ gather_all" in notebook.run("%distributed check gather_all", timeout=_TO_START).text
        assert notebook.run("%%distributed\nmine - rank").text == f"[0-1] {number}\n", "its variables are its own"
        assert "Stopped 2 ranks" in notebook.run("%distributed stop").text
    finally:
        notebook.close()


@pytest.mark.timeout(900)
def test_thirty_one_after_another(tmp_path: Path) -> None:
    """They have the same environment, and so one seed: all but the first start without an import of torch."""
    for number in range(_PEOPLE):
        _take_part(tmp_path, number, NBCOMM_CLASS=str(tmp_path / "class"))


@pytest.mark.timeout(900)
def test_thirty_and_ten_at_once(tmp_path: Path) -> None:
    """Each has an environment of its own, and so imports torch by itself, as in a hub's containers."""
    progress = tmp_path / "class"
    progress.mkdir()

    def take_part(number: int) -> None:
        environment = {"NBCOMM_LEARNER": f"learner{number:02}", "NBCOMM_CLASS": str(progress), "NBCOMM_WARM": "5"}
        _take_part(tmp_path, number, **environment)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        ended = [pool.submit(take_part, number) for number in range(_PEOPLE)]
    failed = {number: error for number, one in enumerate(ended) if (error := one.exception()) is not None}
    assert not failed, failed
    learners = class_table.read(progress)
    assert [name for name, done in learners.items() if done["gather_all"].solved] == [
        f"learner{number:02}" for number in range(_PEOPLE)
    ]
