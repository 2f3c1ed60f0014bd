"""What a teacher sees of a class."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nbcomm.notebook.lessons.class_table import read, text


def line(at: float, puzzle: str, **what: object) -> str:
    return json.dumps({"at": at, "puzzle": puzzle, **what}) + "\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A class of three."""
    wrong = {"right": False, "mistake": "another result"}
    (tmp_path / "ada.jsonl").write_text(line(1, "sum_all", **wrong) + line(2, "sum_all", right=True))
    (tmp_path / "bob.jsonl").write_text(
        "".join(line(at, "sum_all", **wrong) for at in range(10, 13))
        + line(13, "sum_all", hint=1)
        + line(14, "how_many", predicted="3")
        + line(15, "how_many", right=False, mistake="predicted 3")
        + '{"half a li'
    )
    (tmp_path / "eve.jsonl").write_text(line(20, "gather_all", hint=1) + line(21, "how_many", predicted="6"))
    (tmp_path / "notes.txt").write_text("no learner")
    return tmp_path


def test_a_teacher_sees_each_learner_and_who_is_stuck_where(folder: Path) -> None:
    assert text(read(folder), now=73).splitlines() == [
        "learner  sum_all  how_many  gather_all",
        "ada      ✓ 2      –         –",
        "bob      ✗ 3 +1   ≠ 3       –",
        "eve      –        … 6       … 0 +1",
        "right    1 of 3   0 of 3    0 of 3",
        "Stuck: bob with sum_all, after 3 tries and 1 hint; the last 1 min 0 s ago: another result",
        "Mistakes made most: sum_all: another result (4×); how_many: predicted 3 (1×)",
    ]


def test_a_class_that_has_not_begun_is_none(tmp_path: Path) -> None:
    assert text(read(tmp_path)) == "No learner has checked anything yet."
