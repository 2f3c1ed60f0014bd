"""The program for a GPU works: its steps that need none, on CPU ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .steps import STEPS

ROOT = Path(__file__).parents[2]
GROUPS = ("1,2,3,4,9,5,6", "7,13,10", "14,15", "8,11,12,16,17,18", "19,21,23", "22,24,25", "20")
"""Of steps, each a run of the program."""


def test_every_step_is_run() -> None:
    assert sorted({step.number for step in STEPS}) == sorted(int(one) for each in GROUPS for one in each.split(","))


TRIED = """
import sys, time
import tests.gpu.__main__ as program
from tests.gpu.steps import Step, expect

def wrong(place):
    "It sees something else."
    expect(1 == 2, "1 is 1")

def slow(place):
    "It does not end."
    time.sleep(60)

def good(place):
    "It is well."
    return "all"

program.SECONDS, program.STEPS = 1, (Step(1, wrong), Step(2, slow), Step(3, good))
sys.argv[1:] = ["--into", sys.argv[1]]
sys.exit(program.main())
"""


def test_what_is_wrong_or_does_not_end_is_told_and_the_next_step_is_tried(tmp_path: Path) -> None:
    into = tmp_path / "evidence.txt"
    command = [sys.executable, "-c", TRIED, str(into)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    first, *rows = into.read_text().splitlines()
    assert first.startswith("1 ok, 0 skipped, 1 LATE, 1 FAILED, ")
    parts = [[part.strip() for part in row.split("|")] for row in rows]
    assert [(number, verdict, what, said) for number, verdict, _, what, said in parts] == [
        ("1", "FAILED", "It sees something else.", "WrongError: 1 is 1"),
        ("2", "LATE", "It does not end.", "it did not end within 1 s"),
        ("3", "ok", "It is well.", "all"),
    ]


@pytest.mark.usefixtures("no_processes_left")
@pytest.mark.parametrize(
    "numbers", [pytest.param(each, marks=() if each == "14,15" else pytest.mark.nightly) for each in GROUPS]
)
def test_the_steps_that_need_no_gpu_run_without_one(numbers: str, tmp_path: Path) -> None:
    steps = [step for step in STEPS if str(step.number) in numbers.split(",")]
    into = tmp_path / "evidence.txt"
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu", "--only", numbers, "--into", str(into)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    first, *rows = into.read_text().splitlines()
    skipped = sum(step.gpu for step in steps)
    assert first.startswith(f"{len(steps) - skipped} ok, {skipped} skipped, 0 LATE, 0 FAILED, on the CPU, in ")
    assert [row.split("|")[1].strip() for row in rows] == ["skipped" if step.gpu else "ok" for step in steps]
