"""Each row of docs/reliability.md is what really happens."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .faults import FAULTS, Fault, prepare, run, written
from .notebook import Notebook

# How a rank has ended is known only to the daemon that has started it: rows that kill it come last.
pytestmark = pytest.mark.story

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"

LEFT = {
    ("kill -9 of rank 0", "idle"),
    ("kill -9 of rank 0", "Python"),
    ("kill -9 of rank 0", "backward"),
    ("the kernel is restarted", "Python"),
    ("the kernel is restarted", "backward"),
    ("kill -9 of the kernel", "idle"),
    ("kill -9 of the kernel", "backward"),
    ("kill -9 of the node's zygote", "Python"),
    ("kill -9 of the node's zygote", "backward"),
    ("the node's zygote is stopped (SIGSTOP)", "Python"),
    ("the node's zygote is stopped (SIGSTOP)", "backward"),
    ("kill -9 of the node's daemon", "Python"),
    ("the node's daemon is stopped (SIGSTOP)", "Python"),
    ("the node's daemon is stopped (SIGSTOP)", "backward"),
    ("the zygote is stopped, and kill -9 of the daemon", "Python"),
    ("the zygote is stopped, and kill -9 of the daemon", "backward"),
}
"""Rows whose fault another row does in another place, by the same way through the code: `make test-all` does them."""


def _asked(fault: Fault) -> Any:
    return pytest.param(fault, marks=[pytest.mark.nightly] * ((fault.what, fault.where) in LEFT), id=str(fault))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A prepared world in a place of its own, so that there is only one to attach to."""
    with tempfile.TemporaryDirectory(prefix="nb", dir="/tmp", ignore_cleanup_errors=True) as place:
        notebook = Notebook(str(tmp_path_factory.mktemp("faults")), TMPDIR=place)
        try:
            prepare(notebook)
            yield notebook
        finally:
            notebook.close()


@pytest.mark.parametrize("fault", [_asked(fault) for fault in FAULTS if not fault.far])
def test_a_fault_is_told_mended_and_survived(world: Notebook, fault: Fault) -> None:
    outcome = run(world, fault)
    # Half a second where the machine is not busy; C code that holds Python's lock is told of after two. A daemon that
    # must be started takes long where it is busy; what is not noticed lasts as long as the cell sleeps.
    assert outcome.until_told < 60
    assert outcome.until_good < 60


def test_the_page_has_every_row() -> None:
    page = PAGE.read_text()
    for fault in FAULTS:
        assert f"| {fault.what} | {fault.where} |" in page, "run: make faults"


def test_writing_the_rows_changes_nothing_else() -> None:
    page = PAGE.read_text()
    _, _, table = page.partition("| fault |")
    rows = table.split("\n\n")[0].splitlines()[2:]
    (cores,) = re.findall(r"(\d+)\s+cores", page)
    assert written(page, rows, int(cores)) == page
    changed = written(page, ["| a | row |"], 1234)
    assert changed.replace("| a | row |", "\n".join(rows)).replace("1234 cores", f"{cores} cores") == page
