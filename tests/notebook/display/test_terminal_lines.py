"""From chunks of text to lines, as a terminal would show them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbcomm.notebook.display.items import Block, Line, Rich
from nbcomm.notebook.display.terminal_lines import LineReader, Reader
from nbcomm.protocol import Clear, Display, Result, Text


def read(*chunks: str) -> list[str]:
    """All lines of these chunks, the last one included if it has no end."""
    reader = LineReader()
    lines = [line for chunk in chunks for line in reader.feed(chunk)]
    return lines + reader.finish()


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a\nb\n", ["a", "b"]),
        ("a\n\nb", ["a", "", "b"]),
        ("", []),
        ("windows\r\nlines\r\n", ["windows", "lines"]),
        ("10%\r20%\r100%", ["100%"]),
        ("10%\r20%\n", ["20%"]),
        ("long text\rabc", ["abcg text"]),
        ("40% bar\r       \rdone\n", ["done"]),
        ("40% bar\r       \r", []),
        ("abc\b\bX", ["aXc"]),
        ("abcd\r\x1b[K12", ["12"]),
        ("abcd\r\x1b[2Kx", ["x"]),
        ("ab\x1b[3Cc", ["ab   c"]),
        ("ab\x1b[1Dc", ["ac"]),
        (f"ab\x1b[{'9' * 5000}Dc", ["cb"]),
        (f"ab\rc\n\x1b[{'9' * 5000}Ad", ["cd"]),
        ("trailing  \n", ["trailing  "]),
    ],
)
def test_a_terminal_would_be_left_with(text, lines):
    assert read(text) == lines


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("\x1b[31mred\x1b[0m and plain\n", ["\x1b[31mred\x1b[0m and plain"]),
        ("\x1b[31mred\nstill\x1b[0m\nplain", ["\x1b[31mred\x1b[0m", "\x1b[31mstill\x1b[0m", "plain"]),
        ("\x1b[1m\x1b[31mboth\n\nx\x1b[m\n", ["\x1b[1m\x1b[31mboth\x1b[0m", "", "\x1b[1m\x1b[31mx\x1b[m"]),
        (
            "\x1b[32m1\x1b[39m x\n\x1b[38;5;28;01mif\x1b[39;00m y\n",
            ["\x1b[32m1\x1b[39m x", "\x1b[38;5;28;01mif\x1b[39;00m y"],
        ),
        ("\x1b[1m\x1b[38;5;28mx\x1b[39m\ny", ["\x1b[1m\x1b[38;5;28mx\x1b[39m\x1b[0m", "\x1b[1my\x1b[0m"]),
        ("50%\r\x1b[32m99%\x1b[0m", ["\x1b[32m99%\x1b[0m"]),
        ("\x1b[32mab\x1b[0mcd\rX", ["X\x1b[32mb\x1b[0mcd"]),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\\n", ["\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\"]),
    ],
)
def test_colours_stay_within_their_line(text, lines):
    assert read(text) == lines


CHUNKS = st.lists(
    st.sampled_from(
        ["a", "bc", "\n", "\r", "\b", "\x1b[31m", "\x1b[0m", "\x1b[K", " ", "\x1b[2C", "é█", "\x1b[A", "\n\rx\x1b[A"]
    )
)


@given(CHUNKS, st.lists(st.integers(0, 60)))
def test_the_lines_do_not_depend_on_where_the_text_was_cut(words, cuts):
    text = "".join(words)
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    chunks = [text[a:b] for a, b in pairwise(edges)]
    assert read(*chunks) == read(text)


@given(st.lists(st.text(st.characters(exclude_characters="\n\r\b\x1b", exclude_categories=["Cs"]))))
def test_plain_lines_come_back_as_they_are(lines):
    assert read("".join(line + "\n" for line in lines)) == lines


def test_a_line_takes_its_place_when_it_is_finished():
    reader = Reader()
    pieces = [
        *reader.read(Text("stderr", "\r10%")),
        *reader.read(Text("stdout", "one\ntw")),
        *reader.read(Text("stderr", "\r20%")),
        *reader.read(Text("stdout", "o\n")),
    ]
    assert pieces == [Line("stdout", "one"), Line("stdout", "two")]
    assert reader.unfinished == [Line("stderr", "20%")]
    assert reader.end() == [Line("stderr", "20%")]


def bar(text: str, row: int) -> str:
    """What tqdm writes to draw a bar ``row`` lines below the cursor."""
    return "\n" * row + f"\r{text}" + "\x1b[A" * row


def test_nested_bars_are_rows_that_change():
    reader = Reader()
    for epoch in range(3):
        drawn = bar(f"epoch {epoch}", 0) + "".join(bar(f"step {step}", 1) for step in range(3))
        assert list(reader.read(Text("stderr", drawn))) == []
        assert list(reader.read(Text("stdout", f"loss {epoch}\n"))) == [Line("stdout", f"loss {epoch}")]
        assert reader.unfinished == [Line("stderr", f"epoch {epoch}"), Line("stderr", "step 2")]
        reader.read(Text("stderr", bar("      ", 1)))
    assert reader.end() == [Line("stderr", "epoch 2")]


def test_a_bar_that_has_ended_takes_its_place_when_something_else_is_written():
    reader = Reader()
    assert list(reader.read(Text("stderr", "\r50%\r99%\n"))) == []
    assert list(reader.read(Text("stdout", "done\n"))) == [Line("stderr", "99%"), Line("stdout", "done")]
    assert list(reader.read(Text("stderr", "\r50%\n"))) == []
    assert list(reader.read(Text("stderr", "warning\n"))) == [Line("stderr", "50%"), Line("stderr", "warning")]
    assert reader.end() == []


def test_a_display_finishes_a_line_but_not_a_bar():
    reader = Reader()
    assert list(reader.read(Text("stdout", "value: "))) == []
    assert list(reader.read(Text("stderr", "\r10%"))) == []
    assert list(reader.read(Result({"text/plain": "5"}))) == [Line("stdout", "value: "), Line("stdout", "5")]
    assert reader.end() == [Line("stderr", "10%")]


def test_unfinished_lines_end_in_the_order_in_which_they_began():
    reader = Reader()
    for stream, text in [("stderr", "e"), ("stdout", "a"), ("stderr", "f")]:
        reader.read(Text(stream, text))
    assert reader.end() == [Line("stderr", "ef"), Line("stdout", "a")]


def test_clearing_drops_the_unfinished_line():
    reader = Reader()
    reader.read(Text("stdout", "gone"))
    assert list(reader.read(Clear(wait=True))) == [Clear(wait=True)]
    assert reader.end() == []


def test_what_is_more_than_text_or_can_be_updated_is_rich():
    reader = Reader()
    (html,) = reader.read(Display({"text/plain": "x", "text/html": "<b>x</b>"}))
    (handle,) = reader.read(Display({"text/plain": "x"}, display_id="1"))
    assert isinstance(html, Rich)
    assert isinstance(handle, Rich)
    assert html != handle
    assert list(reader.read(Display({}))) == []


def test_many_small_writes_of_one_line_cost_no_more_than_one():
    reader = Reader()
    for _ in range(200_000):
        reader.read(Text("stdout", "."))
    assert reader.end() == [Line("stdout", "." * 200_000)]


@pytest.mark.parametrize("cut", range(1, 19))
def test_a_colour_goes_on_in_the_next_line_wherever_the_text_is_cut(cut: int) -> None:
    text, reader = "a\x1b[31mred\nx\n\x1b[0my\n", LineReader()
    lines = [*reader.feed(text[:cut]), *reader.feed(text[cut:])]
    assert lines == LineReader().feed(text)
    assert lines[1] == "\x1b[31mx\x1b[0m"


def test_whole_lines_of_plain_text_stay_together() -> None:
    reader = Reader()
    assert reader.read_text(Text("stdout", "a\nb\nc")) == [Block("stdout", "a\nb\n", 2)]
    assert reader.read_text(Text("stdout", "d\n\ne\n")) == [Line("stdout", "cd"), Block("stdout", "\ne\n", 2)]
    assert reader.read_text(Text("stdout", "\x1b[1mf\n")) == [Line("stdout", "\x1b[1mf\x1b[0m")]
    assert reader.read(Text("stdout", "g\nh\n")) == [
        Line("stdout", "\x1b[1mg\x1b[0m"),
        Line("stdout", "\x1b[1mh\x1b[0m"),
    ]
