"""The cluster kernel in Jupyter's console, and `%distributed auto` in terminal IPython: typed as a person types."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from nbcomm.rank_spec import parse

TOKEN = "NBCOMM_TEST_TERMINAL"  # noqa: S105 - the name of an environment variable
_ENDS_SECONDS = 90
"""A console does not wait for its kernel: where it is cut short, the world ends when its grace is over."""

pytestmark = pytest.mark.timeout(240)  # the console's 110 s, and then the world's


@pytest.fixture
def place() -> Iterator[Path]:
    """A place for this test's files and worlds alone; nothing that knows it is left."""
    with tempfile.TemporaryDirectory(prefix="nb", dir="/tmp", ignore_cleanup_errors=True) as directory:
        yield Path(directory)
        ours = [p for p in psutil.process_iter(["environ"]) if (p.info["environ"] or {}).get(TOKEN) == directory]
        assert not psutil.wait_procs(ours, timeout=_ENDS_SECONDS)[1]


def typed(module: str, *lines: str, place: Path, options: tuple[str, ...] = ()) -> str:
    """What a terminal's program shows when these lines are typed into it."""
    # The token makes the seed this test's own, which ends with it.
    environment = {**os.environ, "IPYTHONDIR": str(place / "ipython"), TOKEN: str(place), "NBCOMM_WARM": "1"}
    done = subprocess.run(
        [sys.executable, "-m", module, "--simple-prompt", *options],
        input="".join(f"{line}\n" for line in lines),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        cwd=place,
        timeout=110,
        text=True,
        check=True,
    )
    return done.stdout


def ranks_that_showed(text: str, shown: str) -> set[int]:
    """Those with such a line; a rank that came late on a busy machine is not folded with the others."""
    specs = re.findall(rf"\[([\d,-]+)\] {re.escape(text)}$", shown, re.MULTILINE)
    return {rank for spec in specs for rank in parse(spec, 3)}


@pytest.mark.usefixtures("prefix")
def test_the_console(place: Path) -> None:
    shown = typed(
        "jupyter_console",
        "all_reduce(rank)",
        "print('rank', rank)",
        "1 / 0",
        "%distributed -h",
        "exit",
        place=place,
        options=("--kernel", "nbcomm"),
    )
    assert "Every cell runs on 3 ranks" in shown
    assert ranks_that_showed("3", shown) == {0, 1, 2}, shown
    assert "[1] rank 1\n" in shown
    assert "CellError: 3 of 3 ranks failed: [0-2] ZeroDivisionError" in shown
    assert "usage: %distributed" in shown
    assert "Shutting down kernel" in shown


@pytest.mark.usefixtures("prefix")
def test_the_console_which_replaces_nothing_loses_nothing(place: Path) -> None:
    shown = typed(
        "jupyter_console",
        "import time",
        "for i in range(3): print('step', i, 'of', rank); time.sleep(0.3 * (rank + 1))",
        "rank // 2, 'the value of a slow cell'; time.sleep(0.6); rank // 2, 'the value of a slow cell'",
        "shown = display('one', display_id=True); time.sleep(0.6); shown.update('two')",
        "exit",
        place=place,
        options=("--kernel", "nbcomm"),
    )
    steps = [f"step {i} of {rank}\n" for i in range(3) for rank in range(3)]
    assert [shown.count(f"[{step[-2]}] {step}") for step in steps] == [1] * 9, shown
    assert ranks_that_showed("(0, 'the value of a slow cell')", shown) == {0, 1}
    assert ranks_that_showed("(1, 'the value of a slow cell')", shown) == {2}
    assert ranks_that_showed("'one'", shown) == ranks_that_showed("'two'", shown) == {0, 1, 2}, shown
    assert "Starting: " not in shown
    assert "ready in" in shown


@pytest.mark.usefixtures("prefix")
def test_terminal_ipython(place: Path) -> None:
    shown = typed(
        "IPython",
        "%load_ext nbcomm",
        "'here', 1 + 1",
        "%distributed start -n 2",
        "%distributed auto on",
        "all_reduce(rank + 10)",
        "for i in range(2):",
        "    print('round', i, rank)",
        "",
        "%%local",
        "'local', 2 + 2",
        "",
        "",
        "1 / 0",
        "%distributed auto off",
        "'here', 3 + 3",
        "exit",
        place=place,
        options=("--no-banner",),
    )
    for text in ("('here', 2)", "[1] round 1 1\n", "('local', 4)", "Cells run here", "('here', 6)"):
        assert text in shown, shown
    assert ranks_that_showed("21", shown) == {0, 1}, shown
    assert "CellError: 2 of 2 ranks failed: [0-1] ZeroDivisionError" in shown
