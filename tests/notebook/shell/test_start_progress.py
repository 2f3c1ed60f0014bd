"""The progress of a start, in a terminal and where nothing can be updated."""

from __future__ import annotations

import sys

import pytest

from nbcomm.notebook.shell.start_progress import StartProgress


@pytest.mark.parametrize("failed", [False, True])
def test_a_terminal_shows_a_sign_of_life_which_what_follows_replaces(
    failed: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    progress = StartProgress()
    progress("importing torch", 0, 0)
    progress("starting", 1, 4)
    progress.clear() if failed else progress.finish("4 ranks")
    erase = "\r\x1b[K"
    steps = f"{erase}Starting: importing torch …{erase}Starting: starting …{erase}"
    assert capsys.readouterr().out == steps + ("" if failed else "4 ranks\n")


def test_a_pipe_gets_the_end_only(capsys: pytest.CaptureFixture[str]) -> None:
    progress = StartProgress()
    progress("importing torch", 0, 0)
    progress.finish("4 ranks")
    assert capsys.readouterr().out == "4 ranks\n"
