"""A torch on which groups of ours do not work: the world has torch's own and says so, or does not start."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from nbcomm.torch_versions import limits

from . import lies
from .notebook import Notebook

pytestmark = pytest.mark.usefixtures("no_processes_left")

Open = Callable[..., Notebook]

WRONG_SUMS = r"gives \[1, [01]\] where all_reduce must give \[2, 1\]\."


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (lies.SIZE, r"reports that .* is rank [01] of 1, but it was created as rank [01] of 2\."),
        (lies.INSIDE, "division by zero\\."),
    ],
    ids=["size", "inside"],
)
def test_a_world_falls_back_to_torchs_own_groups_and_says_what_is_missing(
    open_notebook: Open, tmp_path: Path, lie: tuple[str, str], reason: str
) -> None:
    notebook = open_notebook(**lies.told(tmp_path / "lies", lie))
    start = notebook.run("%distributed start -n 2", timeout=120)
    assert "The process groups are torch's own: nbcomm does not detect deadlocks" in start.text
    limited = re.escape(f" {limits(torch.__version__)}".rstrip())
    assert re.search(f"The reason: .*{reason}{limited} 2 ranks on cpu", start.text.flat), start.text
    assert notebook.run("%%distributed\nall_reduce(torch.ones(2))").text == "[0-1] tensor([2., 2.])\n"
    assert notebook.run("%%distributed\nbroadcast({'from': rank}, src=1)").text == "[0-1] {'from': 1}\n"
    assert "\nall ranks idle\n" in notebook.run("%distributed status").text
    notebook.run("%distributed heal 1")
    assert notebook.run("%%distributed\nall_reduce(rank + 1)").text == "[0-1] 3\n"
    cell = notebook.interrupted("%%distributed\nprint('on', flush=True)\nif rank == 0: barrier()")
    assert not cell.stream("stderr")
    assert notebook.run("%%distributed\nall_reduce(rank + 1)").text == "[0-1] 3\n"


def test_another_notebook_finds_a_world_with_torchs_own_groups(open_notebook: Open, tmp_path: Path) -> None:
    notebook = open_notebook("%distributed start -n 2", **lies.told(tmp_path / "lies", lies.SIZE))
    notebook.run("%%distributed\nkept = rank")
    notebook.restart()
    notebook.run("%load_ext nbcomm\n%distributed attach")
    notebook.run("%distributed heal 1")
    assert notebook.run("%%distributed -r 0\nkept").text == "[0] 0\n"
    assert notebook.run("%%distributed\nall_reduce(rank + 1)").text == "[0-1] 3\n"


def test_a_torch_newer_than_any_that_was_tested_is_told_of(open_notebook: Open, tmp_path: Path) -> None:
    start = open_notebook(**lies.told(tmp_path / "lies", lies.OLD)).run("%distributed start -n 2", timeout=120)
    assert re.search(r"^torch \S+ is newer than any that nbcomm was tested with", start.text, re.MULTILINE), start.text


def test_a_world_whose_sums_are_wrong_does_not_start(open_notebook: Open, tmp_path: Path) -> None:
    notebook = open_notebook(**lies.told(tmp_path / "lies", lies.SUMS))
    start = notebook.run("%distributed start -n 2", timeout=120, fails=True)
    assert re.search(r"StartError: Rank [01] could not join the process group:", start.error_text)
    assert re.search(WRONG_SUMS, start.error_text)
    assert "Traceback" not in start.error_text
    assert "No world is running" in notebook.run("%distributed status").text


@pytest.mark.parametrize(
    ("lie", "level", "sentence", "code"),
    [
        pytest.param(
            lies.SIZE,
            "warn",
            r"A world of two ranks gives right values\. The process groups are torch's own: ",
            0,
            marks=pytest.mark.nightly,
        ),
        (lies.SUMS, "fail", WRONG_SUMS, 1),
    ],
    ids=["size", "sums"],
)
def test_the_doctor_says_so(tmp_path: Path, lie: tuple[str, str], level: str, sentence: str, code: int) -> None:
    environment = {**os.environ, **lies.told(tmp_path / "lies", lie)}
    asked = subprocess.run(
        [sys.executable, "-c", "import sys; from nbcomm.cli import main; sys.exit(main(['doctor']))"],
        capture_output=True,
        text=True,
        timeout=110,
        env=environment,
        check=False,
    )
    [line] = [line for line in asked.stdout.splitlines() if line.split()[1:2] == ["world"]]
    assert line.startswith(level)
    assert re.search(sentence, asked.stdout), asked.stdout
    assert asked.returncode == code, asked.stdout + asked.stderr
