"""What can be typed is split as a person means it."""

from __future__ import annotations

import pytest

from nbcomm.notebook.shell.arguments import cell_parser, line_parser, parse_cell, parse_line, split
from nbcomm.notebook.shell.parser import Helped, UsageError


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
        ("help", ["help"]),
        ("help start", ["start", "--help"]),
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
    options = parse_line(parser, split(line))
    assert (options.names, options.ranks, options.atol) == (["x - 1"], "0,1", 1e-3)


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("diff a b", ["a", "b"]),
        ("diff a, b -r 0", ["a", "b"]),
        ("diff a -1", ["a -1"]),
        ("diff d['a  b'] m.w", ["d['a  b']", "m.w"]),
        ("diff (a, b)", ["(a, b)"]),
        ("diff f(a, b), c", ["f(a, b)", "c"]),
        ("diff x - 1 y", ["x - 1 y"]),
        ("who a + 1", ["a + 1"]),
        ("who a, b c", ["a", "b", "c"]),
        ("who", []),
        ("push a, b,c d", ["a", "b", "c", "d"]),
        ("pull a,b -r 0", ["a", "b"]),
    ],
)
def test_several_names_are_several_and_one_expression_is_one(line: str, names: list[str]) -> None:
    assert parse_line(line_parser()[0], split(line)).names == names


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--drw", "unrecognized arguments: --drw; did you mean --draw? usage: %%distributed"),
        ("--by_rank", "did you mean --by-rank?"),
        ("-n 4", "%distributed start -n sets the number of ranks. usage"),
        ("--xyzzy", "unrecognized arguments: --xyzzy. usage"),
    ],
)
def test_an_option_that_nobody_knows_is_answered_by_the_one_that_was_meant(line: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_cell(cell_parser(), line)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "start --bckend gloo",
            "%distributed start: unrecognized arguments: --bckend gloo; did you mean --backend? usage:",
        ),
        ("stop --bckend gloo", "%distributed stop: unrecognized arguments: --bckend gloo. usage: %distributed stop ["),
        ("stop -n 1", "%distributed start -n sets the number of ranks. usage: %distributed stop ["),
        (
            "restart -n 1",
            "restart: unrecognized arguments: -n 1: a restart keeps the number of ranks. For another number, type",
        ),
        ("status 3", "%distributed status: unrecognized arguments: 3. usage: %distributed status ["),
        ("status --world 'a b'", "and begin with a letter or digit. usage: %distributed status ["),
    ],
)
def test_a_line_that_a_word_does_not_understand_is_answered_with_that_words_usage(line: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_line(line_parser()[0], split(line))
    assert said in str(caught.value)


def test_help_shows_a_cell_magic_with_both_its_signs() -> None:
    parser, words = line_parser()
    shown = [parser.format_help(), cell_parser().format_help(), *(word.format_help() for word in words.values())]
    assert [text for text in shown if "%%%" in text or ".." in text.replace("...", "")] == []
    assert "%%local runs here." in parser.format_help()
    assert "%%local runs here." in " ".join(words["auto"].format_help().split())


def test_help_of_a_word_is_printed_and_nothing_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    parser, words = line_parser()
    with pytest.raises(Helped):
        parse_line(parser, split("help start"))
    assert capsys.readouterr().out == words["start"].format_help()


@pytest.mark.parametrize("line", ["", "  "])
def test_a_cell_without_options_has_those_of_the_parser_each_time_anew(line: str) -> None:
    parser = cell_parser()
    before = parse_cell(parser, line)
    assert before == parser.parse_args([])
    before.fold = before.ranks = "changed"
    assert parse_cell(parser, line) == parser.parse_args([])
