"""What a learner has done is kept in a file, line by line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nbcomm.notebook.lessons.progress import Done, Progress, gathered, of_this_learner


def test_what_was_done_is_read_again_by_another_kernel(tmp_path: Path) -> None:
    file = tmp_path / "new" / "learner.jsonl"
    progress = Progress(file)
    assert progress.read() == {}
    assert progress.note("gather_all", right=False, mistake="another result") == ""
    progress.note("gather_all", hint=1)
    progress.note("sum", predicted="6", late=True)
    progress.note("gather_all", right=True)
    progress.note("gather_all", right=False, mistake="raised ValueError")
    found = Progress(file).read()
    done = found["gather_all"]
    assert (done.tries, done.hints, done.mistakes) == (2, 1, ["another result"])
    assert 0 < done.solved <= done.last
    assert (found["sum"].predicted, found["sum"].tries) == ("6", 0)
    assert Progress(file).of("other") == Done()


def test_a_prediction_stays_the_first() -> None:
    lines = [json.dumps({"at": 1, "puzzle": "p", "predicted": value}) for value in ("3", "6")]
    assert gathered(lines)["p"].predicted == "3"


def test_lines_that_are_none_are_left_out() -> None:
    whole = json.dumps({"at": 2, "puzzle": "p", "right": True})
    assert gathered([whole[:9], "7", "[]", '{"at": "x", "puzzle": 1}', '{"at": 1}', "", whole])["p"].solved == 2


def test_a_file_that_cannot_be_written_is_told_and_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("")
    told = Progress(tmp_path / "folder" / "learner.jsonl").note("p", right=True)
    assert told.startswith("Your progress was not kept: ")


def test_the_file_is_the_learners_own_or_in_the_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    of_this_learner({}).note("p", right=True)
    assert (tmp_path / "data" / "nbcomm" / "progress.jsonl").exists()
    for environment, name in [
        ({"JUPYTERHUB_USER": "ada"}, "ada"),
        ({"JUPYTERHUB_USER": "ada", "NBCOMM_LEARNER": "../Åsa / 7"}, "_Åsa___7"),
        ({"NBCOMM_LEARNER": "..."}, "learner"),
    ]:
        of_this_learner({"NBCOMM_CLASS": str(tmp_path / "class"), **environment}).note("p", right=True)
        assert (tmp_path / "class" / f"{name}.jsonl").exists(), list((tmp_path / "class").iterdir())


def test_a_user_without_a_name_has_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise OSError("no entry")

    monkeypatch.setattr("getpass.getuser", nobody)
    of_this_learner({"NBCOMM_CLASS": str(tmp_path)}).note("p", right=True)
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("user-")
