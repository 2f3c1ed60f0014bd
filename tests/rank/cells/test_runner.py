"""Whether an interrupt has come while a cell imports a library: what a frame's callers tell."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from nbcomm.rank.cells.runner import _imports_library

PROGRAM = f"{sys.prefix}/lib/program.py"


def run(file: str, code: str, scope: dict[str, Any]) -> None:
    exec(compile(code, file, "exec"), scope)  # noqa: S102 - as an import does


@pytest.mark.parametrize(
    ("inner", "is_library"),
    [
        ("look()", False),
        ("run(f'{prefix}/lib/slow.py', 'look()', {'look': look, '__name__': 'slow'})", True),
        ("run('/home/somebody/own.py', 'look()', {'look': look, '__name__': 'own'})", False),
    ],
)
def test_the_program_itself_may_be_installed_and_is_no_import_of_the_cells(inner: str, is_library: bool) -> None:
    seen: list[bool] = []
    cell: dict[str, Any] = {"run": run, "prefix": sys.prefix, "__name__": "__main__"}
    cell["look"] = lambda: seen.append(_imports_library(sys._getframe(1), cell))
    ours: dict[str, Any] = {"run": run, "cell": cell, "inner": inner, "__name__": "nbcomm.rank.main_loop"}
    run("main_loop.py", "def serve(): run('cell', inner, cell)\ndef idle(look): look()", ours)
    run(PROGRAM, "serve()", {"serve": ours["serve"], "__name__": "__main__"})
    assert seen == [is_library]
    run(PROGRAM, "idle(look)", {"idle": ours["idle"], "look": cell["look"], "__name__": "__main__"})
    assert seen == [is_library, False], "between the steps of an awaiting cell"
