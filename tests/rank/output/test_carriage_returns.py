"""What a progress bar wrote, shortened: nobody sees a difference."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from nbcomm.notebook.display.terminal_lines import LineReader
from nbcomm.rank.output.carriage_returns import settle_returns


def shown(text: str) -> list[str]:
    """The lines that a terminal shows in the end."""
    lines, place = [""], 0
    for character in text:
        if character == "\n":
            lines.append("")
            place = 0
        elif character == "\r":
            place = 0
        else:
            line = lines[-1]
            lines[-1] = line[:place] + character + line[place + 1 :]
            place += 1
    return lines


@given(st.lists(st.text(alphabet="abc\r\n", max_size=12), max_size=6))
def test_settling_changes_nothing_that_is_seen(pieces: list[str]) -> None:
    whole = "".join(pieces)
    settled = "".join(settle_returns(piece) for piece in pieces)
    # What stands behind the cursor may differ, as may blanks: compare what is read.
    assert shown(settled) == shown(whole)
    assert len(settled) <= len(whole)


def test_states_that_end_with_a_return_are_settled_too() -> None:
    assert settle_returns("1%\r" * 1000 + "2%\r") == "1%\r2%\r"


def read(pieces: list[str]) -> list[str]:
    """The lines that the notebook makes of it."""
    reader = LineReader()
    return [line for piece in pieces for line in reader.feed(piece)] + reader.finish()


_ESCAPES = ("\x1b[A", "\x1b[K", "\x1b[2K", "\x1b[31m", "\x1b[0m", "\x1b[3D")


@given(st.lists(st.sampled_from(["ab", "xyz", "\r", "\r", "\n", "\b", *_ESCAPES]), max_size=14), st.integers(0, 40))
@example(["ab", "\n", "\r", "xyz", "\x1b[A", "\r", "ab", "\n", "\n"], 0)  # tqdm's nested bars
@example(["\n", "\x1b[31m", "xyz", "\x1b[0m", "\r", "ab"], 0)  # a bar with colours
@example(["\r", "\r", "\n"], 0)  # what ends a line is more than its last return
@example(["ab", "\r", "xyz", "\r", "\n"], 6)  # a bar that ends its line as Windows does
def test_settling_changes_nothing_that_the_notebook_shows(words: list[str], cut: int) -> None:
    whole = "".join(words)
    pieces = [whole[:cut], whole[cut:]]
    assert read([settle_returns(piece) for piece in pieces]) == read(pieces)
