"""A line that is not understood is answered with what was meant, and help begins with examples."""

from __future__ import annotations

import pytest

from nbcomm.notebook.shell.arguments import cell_parser, line_parser, parse_cell
from nbcomm.notebook.shell.parser import UsageError, unknown_word

MOST_USED = "The most used are start, status, push, pull, who, diff and stop; %distributed help lists all."


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("print(rank)", "The line of %%distributed takes options only: write print(rank) on the line below it."),
        ("-r 0 x = rank", "write x = rank on the line below it."),
        ("0,2", "%%distributed has no argument 0,2; did you mean %%distributed -r 0,2?"),
        ("!1", "did you mean %%distributed -r !1?"),
        ("start -n 2", "start is a subcommand of %distributed, with one percent sign: type %distributed start -n 2 in"),
        ("status", "with one percent sign: type %distributed status in a cell of its own."),
    ],
)
def test_what_is_no_option_of_a_cell_is_told_where_it_belongs(line: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_cell(cell_parser(), line)
    assert said in str(caught.value)
    assert str(caught.value).endswith(" Nothing was run; %%distributed? shows its options.")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--targets 1", "-r names the ranks on which a cell runs, as in -r 0,2."),
        (
            "-t 1 --noblock",
            "-r names the ranks on which a cell runs, as in -r 0,2; a cell always waits for its ranks; ■",
        ),
        ("--block", ": a cell always waits for its ranks, without an option."),
        ("--local", ": a cell without %%distributed runs in the notebook."),
        ("--group-outputs=engine", ": --by-rank shows the output of one rank after the other."),
        ("--out x", ": %distributed pull brings a variable of the ranks to the notebook."),
    ],
)
def test_an_option_of_px_is_answered_with_nbcomms_way(line: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_cell(cell_parser(), line)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("frobnicate", f"%distributed has no subcommand 'frobnicate'. {MOST_USED}"),
        ("strt", "%distributed has no subcommand 'strt'; did you mean start or restart or status?"),
        ("Puhs", "did you mean push?"),
        ("print(rank)", "'print(rank)': code for the ranks goes below a line %%distributed, with two percent signs."),
        ("x = 3", "code for the ranks goes below a line %%distributed"),
        ("rank", "code for the ranks goes below a line %%distributed"),
        ("-r 0", "needs a subcommand before -r; did you mean %%distributed -r 0, with two percent signs?"),
        ("-n 4", "needs a subcommand before -n; did you mean %distributed start -n 4?"),
        ("distributed", MOST_USED),
    ],
)
def test_a_word_that_is_no_subcommand_is_answered_with_what_was_meant(line: str, said: str) -> None:
    assert said in unknown_word(line.split(), cell_parser())


def test_help_says_what_it_does_then_two_examples_then_the_options() -> None:
    parser, words = line_parser()
    for shown in (parser, cell_parser(), *words.values()):
        text = shown.format_help()
        does, examples, usage = (text.index(part) for part in (*text.split(maxsplit=1)[:1], "%distributed ", "usage: "))
        assert does < examples < usage, text
        assert "positional arguments" not in text
        assert max(map(len, text.splitlines())) <= 80
    assert "{start,status" not in parser.format_help()
    assert "\n    push    " in parser.format_help()
    assert (
        words["push"]
        .format_help()
        .startswith("Copy variables of the notebook to every rank.\n\n  %distributed push lr ")
    )
    assert "--file FILE [ARGS ...]" in cell_parser().format_help()
