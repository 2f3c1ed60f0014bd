"""The examples in the help can be typed as they stand."""

from __future__ import annotations

import pytest

from nbcomm.notebook.shell.arguments import cell_parser, line_parser, parse_cell, parse_line, split
from nbcomm.notebook.shell.examples import CELL, EXAMPLES, LINE, WORDS


def test_each_subcommand_has_two() -> None:
    assert [*line_parser()[1]] == WORDS
    assert {len(examples) for examples in EXAMPLES.values()} == {2}


@pytest.mark.parametrize("code", [each.code for word in (LINE, *WORDS) for each in EXAMPLES[word]])
def test_an_example_is_understood(code: str) -> None:
    magic, _, line = code.partition(" ")
    words = split(line)
    assert magic == LINE
    if words[-1] != "--help" and words != ["help"]:
        assert parse_line(line_parser()[0], words).word == words[0]


def test_an_example_of_a_cell_is_understood_and_shown_below_what_it_does() -> None:
    for each in EXAMPLES[CELL]:
        magic, line = each.code.splitlines()[0], each.code.splitlines()[1]
        parse_cell(cell_parser(), magic.removeprefix(CELL))
        assert each.text == f"  {each.does}\n    {magic}\n    {line}"
