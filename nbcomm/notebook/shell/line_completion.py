"""What can follow on a line of ``%distributed`` or ``%%distributed``: words, options, and some of their values.

It is read from the parsers in `arguments`, so that a new option is completed as soon as it exists.
"""

from __future__ import annotations

import argparse
import re
from typing import Literal, NamedTuple

from .arguments import cell_parser, line_parser

_LINE = re.compile(r"[ \t]*(%%?distributed)[ \t]+(?P<rest>.*)")

_WORLD = re.compile(r"--world[= ](\S+)")

Names = Literal["", "here", "on ranks", "of worlds"]


class TypedLine(NamedTuple):
    """A line up to the cursor.

    Attributes:
        magic: "%distributed" or "%%distributed".
        words: the complete ones.
        token: the one that is being typed; may be empty.
    """

    magic: str
    words: list[str]
    token: str


class Choice(NamedTuple):
    """What may follow.

    Attributes:
        texts: fixed texts.
        names: the names of variables, too (of the notebook's, or of the ranks' in the world of the name ``world``), or
            of worlds.
    """

    texts: list[str]
    names: Names = ""
    world: str = ""


def line_at(code: str, cursor: int) -> TypedLine | None:
    r"""Return the line that the cursor is in, if it is a line of nbcomm's.

    >>> line_at("x = 1\n%distributed start -n 4 --de", 34)
    TypedLine(magic='%distributed', words=['start', '-n', '4'], token='--de')
    """
    found = _LINE.fullmatch(code[code.rfind("\n", 0, cursor) + 1 : cursor])
    if found is None:
        return None
    *words, token = re.split(r"[ \t]+", found["rest"])
    return TypedLine(found[1], words, token)


def choices(line: TypedLine) -> Choice | None:
    """Return what may follow; None for what IPython completes, such as files."""
    if line.magic == "%%distributed":
        script = "--file" in line.words or line.token.startswith("--file=")  # the rest of the line is the script's
        return None if script else _of(cell_parser(), line.words, line.token)
    _, words = line_parser()
    if not line.words:
        return Choice(list(words))
    word, *rest = line.words
    parser = words.get(word)
    if parser is None:
        return Choice([])
    return _of(parser, rest, line.token, names="here" if word == "push" else "on ranks")


def _of(parser: argparse.ArgumentParser, words: list[str], token: str, names: Names = "") -> Choice | None:
    actions = parser._actions  # noqa: SLF001 - argparse has no public way to ask what it knows
    options = {text: action for action in actions for text in action.option_strings}
    before = options.get(words[-1]) if words else None
    if before is not None and before.nargs != 0:  # its value is being typed
        if before.metavar == "FILE":
            return None
        named = "--world" in before.option_strings
        return Choice([str(choice) for choice in before.choices or ()], "of worlds" if named else "")
    wanted = {action.metavar for action in actions if not action.option_strings}
    if "NAME" in wanted and not token.startswith("-"):
        return Choice([], names, _world(words))
    if "FILE" in wanted and not token.startswith("-"):
        return None
    positional = next((action for action in actions if not action.option_strings and action.choices), None)
    if positional is not None and not words and not token.startswith("-"):
        return Choice([str(choice) for choice in positional.choices or ()])
    used = {id(options[word]) for word in words if word in options}
    texts = [action.option_strings[-1] for action in actions if action.option_strings and id(action) not in used]
    return Choice([text for text in texts if text != "--help"])


def _world(words: list[str]) -> str:
    found = _WORLD.search(" ".join(words))
    return found[1] if found is not None else ""
