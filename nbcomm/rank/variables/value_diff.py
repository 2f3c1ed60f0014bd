"""Where two values differ, one of which is another rank's.

`form` converts any value so that it can be sent to another rank: data and plain values as they are, in nodes of
nbcomm's own, so that nothing of a user's is pickled or rebuilt. `compare` walks along two such forms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...errors import TransferError
from .array_diff import Array, Elements, bits, element
from .digest import digest
from .structure import IncomparableError, data_of, dtype_of, is_plain, parts_of

_CONTEXT = 12
"""Characters of a text that are shown on each side of its first difference from another."""

_LONGEST = 60
"""Characters of a value that are shown."""


@dataclass
class Node:
    """A value with parts, by what follows the value's name to refer to each."""

    kind: str
    parts: dict[str, Any]


@dataclass
class Sealed:
    """A value of which only the hash is compared: a function, a class, an entry of a set."""

    kind: str
    digest: bytes


# ── to be sent ──────────────────────────────────────────────────────────────────────────────────────


def form(value: Any) -> Any:
    """Return the form of a value.

    Raises:
        TransferError: the value, or a part of it, cannot be looked into.
    """
    try:
        return _Former().of(value, "")
    except RecursionError as error:
        raise TransferError("it cannot be compared: it is nested too deep") from error
    except Exception as error:
        raise TransferError(f"it cannot be compared: {error}") from error


class _Former:
    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Any]] = {}
        self._open: list[int] = []

    def of(self, value: Any, path: str) -> Any:
        if is_plain(value):
            return value
        if id(value) in self._known:
            return self._known[id(value)][1]
        if id(value) in self._open:
            return Sealed("itself", b"%d" % self._open[::-1].index(id(value)))
        self._open.append(id(value))
        made = self._look_into(value, path)
        self._open.pop()
        self._known[id(value)] = value, made
        return made

    def _look_into(self, value: Any, path: str) -> Any:
        if type(value) in (list, tuple) and all(map(is_plain, value)):
            return value
        try:
            data = data_of(value)
            if data is not None:
                return data
            parts = parts_of(value)
            if parts.sealed:
                return Sealed(parts.kind, digest(value))
            if type(value) in (set, frozenset):
                return Node(parts.kind, _entries(value))
        except IncomparableError as error:
            raise IncomparableError(f"{error}{f' (at {path})' if path else ''}") from error
        return Node(parts.kind, {label: self.of(item, path + label) for label, item in parts.items})


def _entries(values: Any) -> dict[str, Any]:
    """Return the entries of a set, by their text; several may have the same text."""
    found: dict[str, Any] = {}
    for key, value in sorted(((digest(value), value) for value in values), key=lambda pair: pair[0]):
        label = looks = f"{{{_cut(repr(value))}}}"
        number = 2
        while label in found:
            label, number = f"{looks} ({number})", number + 1
        found[label] = Sealed(type(value).__name__, key)
    return found


# ── to be compared ──────────────────────────────────────────────────────────────────────────────────


def compare(mine: Any, theirs: Any, atol: float = 0.0) -> dict[str, Any]:
    """Return where two forms differ.

    Args:
        mine: this rank's.
        theirs: the other's.
        atol: numbers that are no further apart count as equal.

    Returns:
        ``leaves``: how many there are in both together; ``different``: how many of them differ; ``first``: the first of
        them, see `nbcomm.notebook.variables.comparison`; ``close``: how many numbers differ by no more than ``atol``;
        ``absolute`` and ``relative``: the largest differences, each with its path and index.
    """
    walk = _Walk(atol)
    walk.along(mine, theirs, "")
    return {
        "leaves": walk.leaves,
        "different": walk.different,
        "first": walk.first,
        "close": walk.close,
        "absolute": walk.absolute,
        "relative": walk.relative,
    }


class _Walk:
    def __init__(self, atol: float) -> None:
        self.leaves = self.different = self.close = 0
        self.first: dict[str, Any] | None = None
        self.absolute: tuple[Any, str, list[int]] | None = None
        self.relative: tuple[Any, str, list[int]] | None = None
        self._atol = atol
        self._seen: set[tuple[int, int]] = set()

    def along(self, mine: Any, theirs: Any, path: str) -> None:
        """Compare two forms at the same path."""
        if isinstance(mine, Node) and isinstance(theirs, Node) and mine.kind == theirs.kind:
            self._nodes(mine, theirs, path)
            return
        self.leaves += 1
        what, whats = what_is(mine), what_is(theirs)
        if what != whats and not (_is_row(mine) and type(mine) is type(theirs)):
            self._differ("type", path, what, whats)
        elif isinstance(mine, torch.Tensor | np.ndarray):
            self._arrays(mine, theirs, path)
        elif _is_row(mine):
            self._rows(mine, theirs, path)
        elif isinstance(mine, Sealed):
            if mine.digest != theirs.digest:
                self._differ("hidden", path, what, whats)
        else:
            self._plain(mine, theirs, path)

    def _nodes(self, mine: Node, theirs: Node, path: str) -> None:
        pair = id(mine), id(theirs)
        if pair in self._seen:  # the same two objects in several places
            return
        self._seen.add(pair)
        for label, other in theirs.parts.items():
            if label in mine.parts:
                self.along(mine.parts[label], other, path + label)
            else:
                self.leaves += 1
                self._differ("lacking", path + label, "", what_is(other))
        for label, part in mine.parts.items():
            if label not in theirs.parts:
                self.leaves += 1
                self._differ("extra", path + label, what_is(part), "")

    def _arrays(self, mine: Array, theirs: Array, path: str) -> None:
        found = Elements(mine, theirs, self._atol)
        self.close += found.close
        for name, largest in (("absolute", found.absolute), ("relative", found.relative)):
            if largest.place >= 0:
                self._enlarge(name, largest.amount, path, element(mine, largest.place)[0])
        if found.count:
            index, here = element(mine, found.first)
            there = element(theirs, found.first)[1]
            if here == there:
                here, there = f"{here} ({bits(mine, found.first)})", f"{there} ({bits(theirs, found.first)})"
            self._differ("elements", path, here, there, index=index, count=found.count, total=found.total)

    def _rows(self, mine: Any, theirs: Any, path: str) -> None:
        """Compare two lists of numbers and texts."""
        pairs = enumerate(zip(mine, theirs, strict=False))
        places = [place for place, (a, b) in pairs if not self._same(a, b, path, place)]
        total, common = max(len(mine), len(theirs)), min(len(mine), len(theirs))
        count = len(places) + total - common
        if not count:
            return
        place = places[0] if places else common
        here, there = _shown_apart(mine[place], theirs[place]) if places else (_at(mine, place), _at(theirs, place))
        lengths = [len(mine), len(theirs)]
        self._differ("elements", path, here, there, index=[place], count=count, total=total, lengths=lengths)

    def _plain(self, mine: Any, theirs: Any, path: str) -> None:
        if self._same(mine, theirs, path):
            return
        if isinstance(mine, str | bytes | bytearray):
            index, lengths = [_parting(mine, theirs)], [len(mine), len(theirs)]
            self._differ("text", path, *_shown_apart(mine, theirs), index=index, lengths=lengths)
        else:
            self._differ("value", path, *_shown_apart(mine, theirs))

    def _same(self, mine: Any, theirs: Any, path: str, place: int | None = None) -> bool:
        """Return whether two plain values are equal, or close enough; record the distance of numbers."""
        if type(mine) is not type(theirs):
            return False
        if type(mine) not in (float, complex):  # of those, equal ones may differ in their bits, and NaN equals nothing
            if mine == theirs:
                return True
            if type(mine) is not int:
                return False
        elif digest(mine) == digest(theirs):
            return True
        index = [] if place is None else [place]
        try:
            apart = abs(mine - theirs)
            share = apart / abs(theirs) if theirs else None
        except OverflowError:  # integers that no float can hold
            return False
        if apart > 0:
            self._enlarge("absolute", apart, path, index)
        if share is not None and share > 0:
            self._enlarge("relative", share, path, index)
        both_nan = mine != mine and theirs != theirs  # noqa: PLR0124 - that is how NaN is known
        alike = bool(self._atol > 0 and (apart <= self._atol or both_nan))
        self.close += alike
        return alike

    def _enlarge(self, name: str, amount: Any, path: str, index: list[int]) -> None:
        largest = getattr(self, name)
        if largest is None or amount > largest[0]:
            setattr(self, name, (amount, path, index))

    def _differ(self, how: str, path: str, here: str, there: str, **more: Any) -> None:
        self.different += 1
        if self.first is None:
            self.first = {"how": how, "path": path, "here": here, "there": there, **more}


def what_is(value: Any) -> str:
    """Describe a form in words that are equal if two forms can be compared in detail."""
    if isinstance(value, torch.Tensor | np.ndarray):
        name = "Tensor" if isinstance(value, torch.Tensor) else "ndarray"
        return f"{name} {dtype_of(value)} {tuple(value.shape)}"
    if isinstance(value, Node | Sealed):
        return value.kind.removeprefix("builtins.").replace("__main__.", "")
    if _is_row(value):
        return f"{type(value).__name__} of {len(value)}"
    return type(value).__name__


def _is_row(value: Any) -> bool:
    return type(value) in (list, tuple)


def _parting(mine: Any, theirs: Any) -> int:
    """Return the first position at which two texts differ; by bisection, since slices are compared fast."""
    low, high = 0, min(len(mine), len(theirs))
    while low < high:
        middle = (low + high + 1) // 2
        if mine[low:middle] == theirs[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _shown_apart(mine: Any, theirs: Any) -> tuple[str, str]:
    """Return two plain values that differ, in words that differ."""
    if type(mine) is type(theirs) and isinstance(mine, str | bytes | bytearray):
        place = _parting(mine, theirs)
        start, end = max(0, place - _CONTEXT), place + _CONTEXT
        return _excerpt(mine, start, end), _excerpt(theirs, start, end)
    here, there = _shown(mine), _shown(theirs)
    if here != there:
        return here, there
    if isinstance(mine, float | complex) and type(mine) is type(theirs):  # a NaN has many bit patterns
        return f"{here} ({bits(np.array(mine), 0)})", f"{there} ({bits(np.array(theirs), 0)})"
    return f"{type(mine).__name__} {here}", f"{type(theirs).__name__} {there}"


def _excerpt(text: Any, start: int, end: int) -> str:
    return f"{'…' if start else ''}{text[start:end]!r}{'…' if end < len(text) else ''}"


def _at(row: Any, place: int) -> str:
    return _shown(row[place]) if place < len(row) else "nothing"


def _shown(value: Any) -> str:
    if isinstance(value, str | bytes | bytearray):
        return _excerpt(value, 0, _LONGEST)
    try:
        return _cut(repr(value))
    except ValueError:  # Python writes no integer of more than 4300 digits
        return _cut(hex(value))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}…{text[-_LONGEST // 2 :]}"
