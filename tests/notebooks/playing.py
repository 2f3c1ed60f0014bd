"""What a reader sees of each notebook of the repository, wherever its ranks are."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

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
        r"\[0\] \['part-0', 'part-1', 'part-2', 'part-3'\]",
    ],
    "03_deadlocks": [
        r".*all_reduce #\d+ of the world \(float32 \(4,\), sum\) can never complete:.*",
        r"  rank 1 has finished the cell",
        r"\[0\] \(0, 4\)",
        r"\[3\] \(30, 4\)",
        r".*ZeroDivisionError: float division by zero.*",
        r".*rank 2 failed \(ZeroDivisionError: float division by zero\).*",
        r".*send #\d+ to rank \d.* can never complete:",
        r"\[0\] 'from 3'",
        r".*MismatchError: all_reduce #\d+ of the world is not the same on all ranks:",
        r"  rank 3 has finished the cell",
        r"\[0-3\] loss \d\.\d{4}",
        r"\[0-3\] equal on all ranks: True",
        r"  rank 1 waits in barrier.*",
        r"  ranks 1-3 have finished the cell",
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
    ],
}
"""Lines that a reader sees, as patterns for whole lines, in this order. A hang is told as soon as it is certain, by one
rank that has finished: of the others, those that are slow have not called yet."""


def played(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a notebook from top to bottom and return its page, which must have what its reader expects."""
    page = io.StringIO()
    assert cli.play(path, page) == 0, page.getvalue() + capsys.readouterr().err
    lines = iter(page.getvalue().splitlines())
    for pattern in SHOWN.get(path.stem, []):
        assert any(re.fullmatch(pattern, line) for line in lines), (
            f"{pattern} is not in, or not here:\n{page.getvalue()}"
        )
    return page.getvalue()


def played_with(profile: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Run the first notebook with a profile that says where its ranks are; return its page."""
    (folder / "nbcomm").mkdir()
    (folder / "nbcomm" / "profiles.toml").write_text(f"[there]\n{profile}\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    monkeypatch.setenv("NBCOMM_PROFILE", "there")
    return played(NOTEBOOKS[0], capsys)
