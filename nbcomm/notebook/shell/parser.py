"""The parser of the magics' lines: it refuses a line with what was meant, and shows examples in its help."""

from __future__ import annotations

import argparse
import difflib
import re
import textwrap
from collections.abc import Sequence
from typing import Any, NoReturn

from ...cell_names import ALL
from ...errors import SteeringError
from .examples import CELL, LINE, WORDS, Example

_MOST_USED = ("start", "status", "push", "pull", "who", "diff", "stop")

_WIDTH = 80
"""Characters of a line of help: neither a page beside its folders nor a terminal breaks it again."""

_THEIRS = {
    **dict.fromkeys(("-t", "--targets"), "-r names the ranks on which a cell runs, as in -r 0,2"),
    **dict.fromkeys(("-b", "--block"), "a cell always waits for its ranks, without an option"),
    **dict.fromkeys(("-a", "--noblock"), "a cell always waits for its ranks; ■ ends it"),
    **dict.fromkeys(("-l", "--local"), f"a cell without {CELL} runs in the notebook"),
    **dict.fromkeys(("-g", "--group-outputs"), "--by-rank shows the output of one rank after the other"),
    **dict.fromkeys(("-o", "--out"), "%distributed pull brings a variable of the ranks to the notebook"),
}
"""Options of ``%%px``, and what is nbcomm's way."""

_SPEC = re.compile(r"[\d!,:-]+|all")
_CODE = re.compile(r"[()\[\]=]")


class _Formatter(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=_WIDTH)

    def _format_action(self, action: argparse.Action) -> str:
        lines = super()._format_action(action)
        return lines.partition("\n")[2] if isinstance(action, argparse._SubParsersAction) else lines  # noqa: SLF001


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises a sentence instead of ending the process, and shows examples in its help."""

    def __init__(self, *, does: str, examples: Sequence[Example] = (), **keywords: Any) -> None:
        super().__init__(add_help=False, formatter_class=_Formatter, **keywords)
        self._does = does
        self.add_argument("-h", "--help", action="help", help=argparse.SUPPRESS)
        self._positionals.title, self._optionals.title = "Arguments", "Options"
        self._examples = examples

    def format_help(self) -> str:
        """Return what it does, examples, and its options: whoever has read enough can stop."""
        width = max([len(each.code) for each in self._examples if "\n" not in each.code], default=0)
        examples = "\n".join(f"  {each.code:{width}}  {each.does}" if width else each.text for each in self._examples)
        return "\n\n".join([textwrap.fill(self._does, _WIDTH), *filter(None, [examples]), super().format_help()])

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and what was meant."""
        _, unknown, words = message.partition("unrecognized arguments: ")
        if unknown and self.prog == CELL and not words.startswith("-"):
            raise UsageError(f"{self._no_option(words)} Nothing was run; {CELL}? shows its options.")
        raise UsageError(
            f"{self.prog}: {message.rstrip('.')}{self._meant(words)} {' '.join(self.format_usage().split())}"
        )

    def _no_option(self, words: str) -> str:
        """Return what to do about words on the line of a cell magic that are no options."""
        first = words.split(maxsplit=1)[0]
        if first in WORDS:
            return (
                f"{first} is a subcommand of {LINE}, with one percent sign: type {LINE} {words} in a cell of its own."
            )
        if _SPEC.fullmatch(first):
            return f"{CELL} has no argument {first}; did you mean {CELL} -r {words}?"
        return f"The line of {CELL} takes options only: write {words} on the line below it."

    def _meant(self, words: str) -> str:
        """Return the end of a sentence about unknown options."""
        options = [word for word in words.split() if word.startswith("-")]
        if options == ["-n"] and self.prog.endswith(" restart"):
            return (
                ": a restart keeps the number of ranks. For another number, type %distributed stop, then "
                "%distributed start -n."
            )
        if options == ["-n"]:
            return ": %distributed start -n sets the number of ranks."
        theirs = [_THEIRS[name] for word in options if (name := word.partition("=")[0]) in _THEIRS]
        if theirs and self.prog == CELL:
            return f": {'; '.join(dict.fromkeys(theirs))}."
        known = sorted(self._option_string_actions)
        near = [match for word in options for match in difflib.get_close_matches(word, known, 1)]
        return f"; did you mean {' '.join(near)}?" if near else "."

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:  # noqa: ARG002 - argparse's signature
        """End the parsing, and not the process."""
        raise Helped


class UsageError(SteeringError, ValueError):
    """The line was not understood; nothing was done."""


class Helped(Exception):  # noqa: N818 - not an error: the help was printed
    """The end of parsing after ``--help``."""


def unknown_word(words: Sequence[str], of_cell: argparse.ArgumentParser) -> str:
    """Return what to do about a ``%distributed`` whose first word is none that it knows.

    Args:
        words: what is typed after it.
        of_cell: the parser of ``%%distributed``, whose options it may have.
    """
    first, line = words[0], " ".join(words)
    if first.startswith("-"):
        its = first.split("=")[0] in of_cell._option_string_actions  # noqa: SLF001 - argparse has no public way to ask
        meant = f"{CELL} {line}, with two percent signs" if its else f"{LINE} start {line}"
        return f"{LINE} needs a subcommand before {first}; did you mean {meant}?"
    said = f"{LINE} has no subcommand {first!r}"
    if first in ALL or _CODE.search(line):
        return f"{said}: code for the ranks goes below a line {CELL}, with two percent signs."
    near = difflib.get_close_matches(first.lower(), WORDS, 3, 0.6)
    if near:
        return f"{said}; did you mean {' or '.join(near)}?"
    *most, last = _MOST_USED
    return f"{said}. The most used are {', '.join(most)} and {last}; {LINE} help lists all."
