"""A script that is to run on the ranks, before they hear of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from nbcomm.errors import CellSyntaxError, ScriptError
from nbcomm.notebook.session.script_cells import allow_no_body, order
from nbcomm.notebook.shell.arguments import cell_parser, line_parser, parse_cell, parse_line, split


def test_an_order_says_where_the_script_is_and_what_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b.py").write_text("# coding: latin-1\nx = 1")
    code, content = order("a b.py", ["--x", 3, "it's\n"])
    assert content == b"# coding: latin-1\nx = 1"
    assert code.endswith(f".run({str(tmp_path / 'a b.py')!r}, ['a b.py', '--x', '3', \"it's\\n\"])")
    compile(code, "<cell>", "exec")


@pytest.mark.parametrize("path", ["", "nowhere.py", ".", "a\0.py"])
def test_what_is_not_there_is_refused(path: str) -> None:
    with pytest.raises(ScriptError, match=r"nothing was run\.|Nothing was run\."):
        order(path, [])


@pytest.mark.parametrize("content", [b"x = = 1", b"\xff", b"x = '\0'"])
def test_what_is_no_python_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.py").write_bytes(content)
    with pytest.raises((CellSyntaxError, ScriptError)):
        order(str(tmp_path / "a.py"), [])


@pytest.mark.parametrize(
    ("line", "ranks", "file"),
    [
        ("--file a.py", None, ["a.py"]),
        ("-r 0 --file a.py -r 1 --by-rank --file b -h", "0", ["a.py", "-r", "1", "--by-rank", "--file", "b", "-h"]),
        ("-r 0 --file=a.py -r 1", "0", ["a.py", "-r", "1"]),
        ("--file a.py -- --x", None, ["a.py", "--", "--x"]),
        ("--file 'a b.py' 'c d' ''", None, ["a b.py", "c d", ""]),
        ("--file", None, []),
    ],
)
def test_what_follows_the_file_is_the_scripts_own(line: str, ranks: str | None, file: list[str]) -> None:
    options = parse_cell(cell_parser(), line)
    assert (options.ranks, options.file) == (ranks, file)
    if file:
        words = split(f"run {line.replace('--file=', '--file ')}")
        words.remove("--file")
        options = parse_line(line_parser()[0], words)
        assert (options.ranks, [options.file, *options.args]) == (ranks, file)


@pytest.mark.parametrize("cell", ["%%distributed --file a.py", "%%distributed --file a.py\n", "%%distributed"])
def test_a_cell_without_a_body_reaches_the_magic(cell: str) -> None:
    transformer = TransformerManager()
    transformer.cleanup_transforms.append(allow_no_body)
    assert transformer.transform_cell(cell).endswith(r"'\n')" + "\n")


@pytest.mark.parametrize("cell", ["%%distributed\nx", "%%distributedly", "%%time", "%distributed", "x", ""])
def test_other_cells_stay_as_they_are(cell: str) -> None:
    transformer, plain = TransformerManager(), TransformerManager()
    transformer.cleanup_transforms.append(allow_no_body)
    assert transformer.transform_cell(cell) == plain.transform_cell(cell)
