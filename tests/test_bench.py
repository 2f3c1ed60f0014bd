"""The table of speeds prints; its figures are nobody's business here, its waits are."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench import stamps

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


@pytest.mark.nightly
@pytest.mark.usefixtures("no_processes_left")
def test_the_memory_of_a_lesson_is_that_of_all_its_processes() -> None:
    command = [sys.executable, "-m", "bench.memory", "3", "--solved"]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=100, check=True)
    row = re.search(r"^03_verdicts +(\d+) +(\d+) +(\d+) +(\d+)   (\d+)$", done.stdout, re.MULTILINE)
    assert row, done.stdout
    *parts, whole, processes = map(int, row.groups())
    assert abs(sum(parts) - whole) <= 2  # each is rounded
    assert min(parts) > 20
    assert processes >= 8, "the kernel, the seed, the daemon, its zygote and four ranks"


def test_every_point_of_a_cells_way_is_there_and_is_left_as_it_was(tmp_path: Path) -> None:
    def functions() -> list[object]:
        found = []
        for point in stamps.WAY:
            module, _, path = point.function.partition(":")
            owner, name = path.split(".")
            found.append(getattr(getattr(importlib.import_module(f"nbcomm.{module}"), owner), name))
        return found

    before = functions()
    for where in ("notebook", "rank"):
        stamps.begin(where)
    assert not set(before) & set(functions())
    stamps.end(str(tmp_path / "stamps"))
    assert functions() == before
    assert json.loads((tmp_path / "stamps").read_text()) == []


def test_a_stage_ends_where_the_last_rank_has_passed_its_point() -> None:
    way = stamps.WAY
    notebook = [(at, 1.0 + at) for at, point in enumerate(way) if point.where == "notebook"]
    early, late = ([(at, 1.0 + at + by) for at, point in enumerate(way) if point.where == "rank"] for by in (-0.5, 0))
    (took,) = stamps.spans(notebook, [early, late], [0.0, 1.0 + len(way)])
    assert took == [1.0] * (len(way) + 1)


@pytest.mark.usefixtures("no_processes_left")
def test_the_breakdown_prints_each_part_of_a_cell() -> None:
    program = "from bench import breakdown\nbreakdown.SIZES = (2,)\nfrom bench.__main__ import main\nmain()"
    command = [sys.executable, "-c", program, "--breakdown", "--quick"]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=100, check=True)
    figures = dict(re.findall(r"^  (\S.*?) +([\d.]+)$", done.stdout, re.MULTILINE))
    parts = {point.stage for point in stamps.WAY}
    rows = {"each rank", "each rank of the floor, in a kernel", "a cell on the ranks"}
    assert {*parts, stamps.BEHIND, *rows} <= figures.keys()
    assert all(float(figures[part]) > 0 for part in parts), figures  # every point was passed
