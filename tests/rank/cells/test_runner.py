"""Whether an interrupt has come while a cell imports a library: what a frame's callers tell."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from nbcomm.rank.cells.runner import _imported_library

PROGRAM = f"{sys.prefix}/lib/program.py"


def run(file: str, code: str, scope: dict[str, Any]) -> None:
    exec(compile(code, file, "exec"), scope)  # noqa: S102 - as an import does


def imports(file: str, name: str, code: str = "look()") -> str:
    """Code by which what has ``run`` and ``look`` imports a module."""
    return f"run({file!r}, {code!r}, {{'run': run, 'look': look, '__name__': {name!r}}})"


@pytest.mark.parametrize(
    ("inner", "library"),
    [
        ("look()", ""),
        (imports(f"{sys.prefix}/lib/slow.py", "slow"), "slow"),
        (imports("/home/somebody/own.py", "own"), ""),
        (imports(f"{sys.prefix}/lib/a.py", "a", imports(f"{sys.prefix}/lib/a/b.py", "a.b")), "a"),
        (imports(f"{sys.prefix}/lib/slow.py", "slow", imports("wrapped.py", "nbcomm.comm.collective")), "slow"),
    ],
)
def test_the_program_itself_may_be_installed_and_is_no_import_of_the_cells(inner: str, library: str) -> None:
    seen: list[str] = []
    cell: dict[str, Any] = {"run": run, "__name__": "__main__"}
    cell["look"] = lambda: seen.append(_imported_library(sys._getframe(1), cell))
    ours: dict[str, Any] = {"run": run, "cell": cell, "inner": inner, "__name__": "nbcomm.rank.main_loop"}
    run("main_loop.py", "def serve(): run('cell', inner, cell)\ndef idle(look): look()", ours)
    run(PROGRAM, "serve()", {"serve": ours["serve"], "__name__": "__main__"})
    assert seen == [library]
    run(PROGRAM, "idle(look)", {"idle": ours["idle"], "look": cell["look"], "__name__": "__main__"})
    assert seen == [library, ""], "between the steps of an awaiting cell"
