"""Sentences for a page, in lines that are short enough: Jupyter breaks longer ones anywhere, also within words."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable

WIDTH = 79
"""Characters of a line that a page shows without breaking it within a word."""


def rows(lines: Iterable[str]) -> list[str]:
    """Indent the lines of a list below its first line, and wrap those that are too long, between words.

    >>> rows(["rank 0 called gather, line 3"])
    ['  rank 0 called gather, line 3']
    """
    return [
        row
        for line in lines
        for row in textwrap.wrap(
            line,
            WIDTH,
            initial_indent="  ",
            subsequent_indent="    ",
            break_on_hyphens=False,
        )
    ]


def wrapped(text: str) -> str:
    """Break lines that are too long, between words only; a path or another long word stays whole.

    >>> print(wrapped("Nothing was run, because ranks 0-3 are dead: type %distributed heal to replace them."))
    Nothing was run, because ranks 0-3 are dead: type %distributed heal to replace
    them.
    """
    return "\n".join(row for line in text.split("\n") for row in ([line] if len(line) <= WIDTH else _broken(line)))


def _broken(line: str) -> list[str]:
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(
        line,
        WIDTH,
        subsequent_indent=indent and f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )


def in_one_line(text: str) -> str:
    r"""Return a text with such rows as a sentence.

    >>> in_one_line("The calls differ:\n  rank 0 called gather\n  rank 1 called\n    scatter\nNothing was moved.")
    'The calls differ: rank 0 called gather; rank 1 called scatter. Nothing was moved.'
    """
    joined = text.replace("\n    ", " ").replace(":\n  ", ": ").replace("\n  ", "; ")
    return re.sub(r"([^.,;:])\n", r"\1. ", joined).replace("\n", " ")
