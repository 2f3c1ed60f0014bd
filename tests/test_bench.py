"""The table of speeds prints; its figures are nobody's business here, its waits are."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ranks


def test_the_table_prints_and_is_written(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    command = [sys.executable, "-m", "bench", "--only", "link", "panel", "--quick", "--json", str(file)]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=True)
    assert "round trip of the link, 32 ranks" in done.stdout
    assert [row["what"] for row in json.loads(file.read_text())] == [
        line.split("  ")[0] for line in done.stdout.splitlines()[1:]
    ]


ENDLESS = {
    "values": "values.measure = lambda *_, **__: threading.Event().wait()",
    "cells": "cells._PX = cells._PX.replace('{n}', '99')",  # engines that never come
}
"""By subject, what makes it wait for ever."""


@pytest.mark.usefixtures("no_processes_left")
@pytest.mark.parametrize(
    ("subject", "seconds"), [("values", 0.5), pytest.param("cells", 12, marks=pytest.mark.nightly)]
)
def test_what_never_ends_is_ended_with_a_sentence(subject: str, seconds: float) -> None:
    program = f"import threading\nfrom bench import cells, values\n{ENDLESS[subject]}\n"
    program += "from bench.__main__ import main\nmain()"
    command = [sys.executable, "-c", program, "--only", subject, "--deadline", str(seconds)]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    where = {"values": r"in main \(bench/__main__\.py", "cells": r"in \w+ \(bench/cells\.py"}[subject]
    assert re.search(
        rf"^The measurement of {subject} did not end within {seconds:g} s: it waited {where}, line \d+\)\. On a "
        r"machine that is only slow, --deadline SECONDS gives it more\.\n\Z",
        done.stderr,
        re.MULTILINE,
    ), done.stderr
