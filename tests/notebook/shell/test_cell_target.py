"""Which part of a cell is for ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbcomm.notebook.shell.cell_target import Part, part_for_ranks


@pytest.mark.parametrize(
    ("cell", "part"),
    [
        ("%%distributed\nx.", Part("x.", 14)),
        ("%%distributed\n", Part("", 14)),
        ("%%distributed -r 2,3 --by-rank\nx", Part("x", 31, "2,3")),
        ("%%distributed --ranks=!1\nx", Part("x", 25, "!1")),
        ("%%distributed --world b -r 1\nx", Part("x", 29, "1", "b")),
        ("\n  \n%%distributed\nx", Part("x", 18)),
        ("  %%distributed\n  x", Part("  x", 16)),
        ("%%time\n%%distributed -r 1\nx", Part("x", 26, "1")),
        ("%%distributed\n%%time\nx", Part("%%time\nx", 14)),
        # lines that are still being typed, or wrong
        ("%%distributed -r\nx", Part("x", 17)),
        ("%%distributed --by\nx", Part("x", 19)),
        ("%%distributed --nonsense 5 -r 1\nx", Part("x", 32, "1")),
        ("%%distributed 'unfinished\nx", Part("x", 26)),
        ("%%distributed --help\nx", Part("x", 21)),
    ],
)
def test_the_part_and_where_it_begins(cell: str, part: Part, capsys: pytest.CaptureFixture[str]) -> None:
    assert part_for_ranks(cell) == part
    assert cell[part.offset :] == part.code
    assert capsys.readouterr().out == "", "nobody has asked for help"


@pytest.mark.parametrize(
    "cell",
    [
        "",
        "x",
        "%%distributed",
        "%distributed\nx",
        "%%distributedly\nx",
        "x\n%%distributed\ny",
        "%%bash\n%%distributed\nx",
        "%%",
        "%%\nx",
    ],
)
def test_no_part_is_for_ranks(cell: str) -> None:
    assert part_for_ranks(cell) is None


@pytest.mark.parametrize(
    ("cell", "part"),
    [
        ("x.", Part("x.", 0)),
        ("%%time\nx.", Part("%%time\nx.", 0)),
        ("%%distributed -r 1\nx.", Part("x.", 19, "1")),
        ("%%time\n%%distributed -r 1\nx.", Part("x.", 26, "1")),
        ("%%local\nx.", None),
    ],
)
def test_with_auto_on_any_other_cell_is_for_all_ranks(cell: str, part: Part | None) -> None:
    assert part_for_ranks(cell, plain=True) == part


@given(st.text(alphabet="%distrbue \n-r1'\"\\𝄞", max_size=40))
def test_any_text_has_a_part_or_none(text: str) -> None:
    for cell in (text, f"%%distributed {text}"):
        part = part_for_ranks(cell)
        assert part is None or cell[part.offset :] == part.code
