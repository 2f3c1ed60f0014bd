"""What can be typed is split as a person means it."""

from __future__ import annotations

import pytest

from nbcomm.notebook.usage import UsageError, line_parser, split


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", []),
        ("push 'a b' c", ["push", "a b", "c"]),
        ("who", ["who"]),
        ("  who   x  y ", ["who", "x", "y"]),
        ("who d['a  b'] x", ["who", "d['a  b']", "x"]),
        ("diff d[\"it's\"]['a \"b'] -r 0", ["diff", "d[\"it's\"]['a \"b']", "-r", "0"]),
        (r"diff d['a\' b']", ["diff", r"d['a\' b']"]),
        ("diff x + 1", ["diff", "x", "+", "1"]),
        ("diff d['open", ["diff", "d['open"]),
    ],
)
def test_quotes_stay_in_expressions_only(line: str, words: list[str]) -> None:
    assert split(line) == words


def test_a_quotation_that_does_not_end_is_refused() -> None:
    with pytest.raises(UsageError, match="not understood"):
        split("push 'x")


@pytest.mark.parametrize("line", ["diff x - 1 -r 0,1 --atol 1e-3", "diff --atol 1e-3 -r 0,1 x - 1"])
def test_options_stand_on_either_side_of_an_expression(line: str) -> None:
    parser, _ = line_parser()
    options = parser.parse_args(split(line))
    assert (" ".join(options.name), options.ranks, options.atol) == ("x - 1", "0,1", 1e-3)
