"""The failures of a cell's ranks, as one exception."""

from __future__ import annotations

from nbcomm.notebook.output.failures import cell_error
from nbcomm.protocol import Failure


def test_identical_tracebacks_are_shown_once_the_odd_one_first():
    common = Failure("CollectiveError", "rank 2 has failed", "Traceback A\nCollectiveError")
    odd = Failure("ZeroDivisionError", "division by zero", "Traceback B\nZeroDivisionError")
    error = cell_error({0: common, 1: common, 2: odd, 3: common}, range(4))
    assert str(error) == (
        "4 of 4 ranks failed: [2] ZeroDivisionError: division by zero; [0-1,3] CollectiveError: rank 2 has failed"
    )
    shown = "\n".join(error._render_traceback_())
    assert shown.index("Traceback B") < shown.index("Traceback A")
    assert shown.count("Traceback A") == 1
    assert shown.count("rank 2 has failed") == 0  # it stands in the tracebacks
    assert shown.endswith("\nCellError: 4 of 4 ranks failed: [2] ZeroDivisionError; [0-1,3] CollectiveError")
    assert error.ranks == [0, 1, 2, 3]


def test_many_different_failures_stay_readable():
    failures = {rank: Failure("ValueError", f"bad {rank}\nmore", f"Traceback {rank}\n" * 20) for rank in range(64)}
    error = cell_error(failures, range(64))
    assert str(error).endswith("; and 61 more")
    assert len(error._render_traceback_()) < 200
    assert len(error.tracebacks) == 64
