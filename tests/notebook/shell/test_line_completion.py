"""What may follow on a line of ``%distributed``."""

from __future__ import annotations

import pytest

from nbcomm.notebook.shell.line_completion import Choice, TypedLine, choices, line_at


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("%distributed st", TypedLine("%distributed", [], "st")),
        ("%distributed ", TypedLine("%distributed", [], "")),
        ("%distributed  start   -n 4 ", TypedLine("%distributed", ["start", "-n", "4"], "")),
        ("x\n  %%distributed -r 2 --", TypedLine("%%distributed", ["-r", "2"], "--")),
        ("%distributed", None),
        ("distributed st", None),
        ("%distribute st", None),
        ("x = '%distributed st", None),
        ("", None),
    ],
)
def test_the_line_up_to_the_cursor(code: str, line: TypedLine | None) -> None:
    assert line_at(code, len(code)) == line


def test_what_stands_behind_the_cursor_does_not_count() -> None:
    assert line_at("%distributed st\nx = 1", 15) == TypedLine("%distributed", [], "st")
    assert line_at("%distributed st\nx = 1", 21) is None
    assert line_at("%distributed start", 14) == TypedLine("%distributed", [], "s")


def follows(line: str) -> Choice | None:
    asked = line_at(line, len(line))
    assert asked is not None
    return choices(asked)


def test_words_options_and_values() -> None:
    first = follows("%distributed ")
    assert first is not None
    assert {"start", "status", "stop", "heal", "pull"} <= set(first.texts)
    start = follows("%distributed start --")
    assert start is not None
    assert {"--device", "--backend", "--timeout", "-n"} <= set(start.texts)
    again = follows("%distributed start --device cpu --")
    assert again is not None
    assert set(start.texts) - set(again.texts) == {"--device"}
    assert follows("%distributed start --device ") == Choice(["auto", "cpu", "cuda"])
    assert follows("%distributed start -n ") == Choice([])
    assert follows("%distributed auto ") == Choice(["on", "off"])
    assert follows("%distributed nonsense ") == Choice([])
    assert follows("%distributed stop --world ") == Choice([], "of worlds")
    cell = follows("%%distributed --")
    assert cell is not None
    assert {"--ranks", "--by-rank", "--no-fold", "--quiet", "--draw", "--trace"} <= set(cell.texts)
    assert follows("%%distributed --trace ") is None, "files are IPython's to complete"


def test_names_of_variables() -> None:
    assert follows("%distributed push x ") == Choice([], "here")
    assert follows("%distributed pull x") == Choice([], "on ranks")
    assert follows("%distributed pull --world b x") == Choice([], "on ranks", "b")
    assert follows("%distributed who -r 0 x") == Choice([], "on ranks")
    assert follows("%distributed diff --world b model.we") == Choice([], "on ranks", "b")
    options = follows("%distributed pull x -")
    assert options is not None
    assert "--ranks" in options.texts


def test_files_are_ipythons_to_complete() -> None:
    for line in ("save tr", "run tr", "run -r 0 tr", "run train.py --lr 0.1 da"):
        assert follows(f"%distributed {line}") is None
    for line in ("--file tr", "--file=tr", "-r 0 --file train.py --da"):
        assert follows(f"%%distributed {line}") is None
    options = follows("%distributed run --by")
    assert options is not None
    assert "--by-rank" in options.texts
