"""What is refused before any rank hears of it."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from IPython.core.interactiveshell import InteractiveShell

from nbcomm.errors import SpecError, StartError, StateError, TransferError
from nbcomm.notebook.shell.hints import Hints
from nbcomm.notebook.shell.magics import DistributedMagics, UsageError
from nbcomm.notebook.shell.routing import Auto


@pytest.fixture
def magics() -> Iterator[DistributedMagics]:
    shell = InteractiveShell.instance()
    yield DistributedMagics(shell, Auto(shell), Hints(shell, Auto(shell)))
    InteractiveShell.clear_instance()  # or this process would be taken for IPython by the tests behind it


@pytest.mark.parametrize(
    ("line", "error", "said"),
    [
        ("strat", UsageError, "did you mean start"),
        ("xyzzy", UsageError, "The most used are"),
        ("start -n four", UsageError, "invalid int value"),
        ("start --device tpu", UsageError, "invalid choice"),
        ("start extra", UsageError, "unrecognized arguments"),
        ("start --grace nan", StartError, "The grace must be a number of seconds, not nan; no world was started"),
        ("start --grace -1", StartError, "The grace must be a number of seconds, not -1"),
        ("start --timeout 0", StartError, "The timeout must be a number of seconds above 0, not 0"),
        ("start --timeout nan", StartError, "The timeout must be a number of seconds above 0, not nan"),
        ("push", UsageError, "required"),
        ("pull x -r", UsageError, "expected one argument"),
        ("pull 'x", UsageError, "not understood"),
        ("diff", UsageError, "required"),
        ("diff x --atol much", UsageError, "invalid float"),
        ("who", StateError, "No world is running"),
        ("stop", StateError, "No world is running"),
        ("pull x", StateError, "No world is running"),
        ("push not_there_at_all", TransferError, "not_there_at_all is not defined in the notebook"),
    ],
)
def test_a_line_that_cannot_be(magics: DistributedMagics, line: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        magics.steer(line)


@pytest.mark.parametrize(
    ("line", "cell", "error"),
    [("", " \n", UsageError), ("--ranks", "1", UsageError), ("-r 1,,2", "1", SpecError)],
)
def test_a_cell_that_cannot_be_starts_no_world(
    magics: DistributedMagics, line: str, cell: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        magics.distributed(line, cell)


def test_help_is_printed_and_is_no_error(magics: DistributedMagics, capsys: pytest.CaptureFixture[str]) -> None:
    for line in ("help", "-h", "start --help"):
        magics.steer(line)
        assert "%distributed" in capsys.readouterr().out
    magics.distributed("--help", "1")
    assert "--by-rank" in capsys.readouterr().out
    magics.steer("")
    assert "No world is running" in capsys.readouterr().out


def test_a_fault_in_telling_the_time_does_not_harm_the_cell(
    magics: DistributedMagics, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def took(_number: int) -> str:
        raise RuntimeError("spoiled")

    session = SimpleNamespace(run=lambda cell, *_args, **_options: ran.append(cell), took=took)
    monkeypatch.setattr(magics, "_session_for", lambda *_: session)
    magics.distributed("", "x = 1")
    assert "spoiled" not in capsys.readouterr().err, "it is off at first"
    magics.steer("time on")
    magics.distributed("", "x = 2")
    magics.distributed("--quiet", "x = 3")
    assert ran == ["x = 1", "x = 2", "x = 3"]
    said = capsys.readouterr()
    assert said.err.count("RuntimeError: spoiled") == 1
    assert "The run time of each cell is shown below it." in said.out
