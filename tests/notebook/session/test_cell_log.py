"""What a session notes for a script."""

from __future__ import annotations

from pathlib import Path

import pytest

from nbcomm.errors import CellError, Interrupted, StateError
from nbcomm.notebook.session.cell_log import CellLog


def run(cell_log: CellLog, number: int, code: str, ends: BaseException | None = None, ranks: int = 4) -> None:
    """A cell, and how it ends."""
    with cell_log.cell(number, code, range(ranks), 4):
        if ends is not None:
            raise ends


def test_cells_are_noted_with_how_they_ended(tmp_path: Path) -> None:
    cell_log = CellLog()
    run(cell_log, 1, "x = rank")
    for number, error in enumerate((CellError("No.", {}), Interrupted(), StateError("Busy.")), 2):
        with pytest.raises(type(error)):
            run(cell_log, number, "y = 1", error)
    run(cell_log, 5, "x", ranks=1)
    values = [1]
    cell_log.pushed({"values": values}, [0], 4)
    values.append(2)
    file = tmp_path / "my train.py"
    said = cell_log.save(str(file), 4, force=False, everything=False)
    assert said.splitlines() == [
        f"{file} has 2 cells: torchrun --nproc-per-node 4 '{file}'",
        "Left out: In [2] (failed), In [3] (was interrupted).",
    ]
    text = file.read_text()
    assert "In [4]" not in text
    assert "if rank == 0:\n    comm.show(x)" in text
    assert "values = [1]\n" in text


def test_a_debugger_that_was_opened_afterwards_is_no_part_of_it(tmp_path: Path) -> None:
    cell_log = CellLog()
    run(cell_log, 1, "%debug\n", ranks=1)
    with pytest.raises(StateError, match="nothing to save"):
        cell_log.save(str(tmp_path / "t.py"), 4, force=False, everything=False)
    run(cell_log, 2, "x = rank")
    said = cell_log.save(str(tmp_path / "t.py"), 4, force=False, everything=False)
    assert said == f"{tmp_path / 't.py'} has 1 cell: torchrun --nproc-per-node 4 {tmp_path / 't.py'}"


def test_nothing_is_saved_where_nothing_has_run(tmp_path: Path) -> None:
    cell_log = CellLog()
    with pytest.raises(CellError):
        run(cell_log, 1, "x", CellError("No.", {}))
    with pytest.raises(StateError, match="nothing was written"):
        cell_log.save(str(tmp_path / "t.py"), 4, force=False, everything=False)
    assert list(tmp_path.iterdir()) == []


def test_who_came_later_says_so(tmp_path: Path) -> None:
    cell_log = CellLog(attached=True)
    run(cell_log, 1, "x = 1")
    assert "attached" in cell_log.save(str(tmp_path / "t.py"), 4, force=False, everything=False)
