"""The history of a world, as far as a script needs it."""

from __future__ import annotations

import ast
from typing import Any, Literal

import msgspec

Outcome = Literal["done", "failed", "interrupted"]

_MOST_ITEMS, _MOST_TEXT = 2_000, 20_000
"""A pushed value with more items or characters is data, and is not written into a script's text."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_NESTED = (tuple, list, set, dict)


class Ran(msgspec.Struct, frozen=True):
    """A cell. ``ranks`` are the ranks that ran it; None for all."""

    number: int
    code: str
    ranks: tuple[int, ...] | None
    outcome: Outcome = "done"


class RanFile(msgspec.Struct, frozen=True):
    """A script that ran on the warm ranks."""

    number: int
    file: str
    ranks: tuple[int, ...] | None
    outcome: Outcome = "done"


class Pushed(msgspec.Struct, frozen=True):
    """Variables pushed from the notebook: each name with its value as text, or with its type's name."""

    literals: dict[str, str]
    others: dict[str, str]
    ranks: tuple[int, ...] | None


class Called(msgspec.Struct, frozen=True):
    """A function that was called on the ranks from the notebook's side."""

    name: str
    ranks: tuple[int, ...] | None


class Replaced(msgspec.Struct, frozen=True):
    """New processes have replaced ranks, whose variables were lost."""

    ranks: tuple[int, ...] | None


Entry = Ran | RanFile | Pushed | Called | Replaced


def pushed(variables: dict[str, Any], ranks: tuple[int, ...] | None) -> Pushed:
    """Record variables with their present values, because the notebook may change them later."""
    literals: dict[str, str] = {}
    others: dict[str, str] = {}
    for name, value in variables.items():
        text = literal(value)
        if text is None:
            others[name] = type(value).__name__
        else:
            literals[name] = text
    return Pushed(literals, others, ranks)


def literal(value: Any) -> str | None:
    """Return a value as Python text that gives the same value; None if there is no such text, or it is too long.

    >>> literal({"lr": 0.1, "sizes": (2, 3)})
    "{'lr': 0.1, 'sizes': (2, 3)}"
    >>> print(literal(float("nan")), literal(object()))
    None None
    """
    if not _is_small(value):
        return None
    try:
        text = repr(value)
        return text if ast.literal_eval(text) == value else None
    except (ValueError, SyntaxError, TypeError, RecursionError):  # inf and nan have no literal
        return None


def _is_small(value: Any) -> bool:
    """Tell whether a value is small and consists of builtin types only (a subclass may have any repr)."""
    items = text = 0
    waiting = [value]
    while waiting:
        value = waiting.pop()
        items += 1
        if type(value) in _NESTED:
            if items + len(value) > _MOST_ITEMS:
                return False
            waiting += [*value.keys(), *value.values()] if isinstance(value, dict) else value
        elif type(value) not in _PLAIN:
            return False
        elif isinstance(value, str | bytes):
            text += len(value)
        elif isinstance(value, int):
            text += value.bit_length() // 3
        if items > _MOST_ITEMS or text > _MOST_TEXT:
            return False
    return True
