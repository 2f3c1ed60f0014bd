"""The ranks' variables side by side: which ranks have them, with which values, and where these are equal."""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...frontend.tables import Table, aligned, marked_up
from ...rank_spec import fold, named
from ...short_repr import amount, shortened

_WIDE, _TALL = 40, 16
"""Characters of a line at which words are wrapped, and the most lines of a cell in which the ranks differ."""

_GROUPS = 16
"""The most groups of equal ranks, and the most reasons, that are told apart."""

_TEXT = 32
"""The most characters of each if there are several."""

_LONGEST = 80
"""The most characters of a name in the table."""

_ROWS = 2000
"""The most variables in the table."""

_NAMES = 8
"""The most names in the sentence above it."""


@dataclass(frozen=True)
class Seen:
    """What one rank has under a name; what does not apply is None, or empty.

    Attributes:
        type: the name of its class.
        shape: of a tensor or array, or of any object that has one; of a sharded tensor that of this rank's part.
        dtype: ``"float32"``.
        device: where it is stored: ``"cpu"``, ``"cuda:1"``.
        nbytes: of a number, tensor or array, and of a module's parameters and buffers, in bytes.
        length: of a text or a collection.
        parameters: of a module, how many numbers its parameters have together.
        value: in few characters.
        shard: of which tensor this rank's part is, in words.
        digest: a hash of its bytes; of sharded parts their layout counts only.
        part: which parts of sharded values this rank has, in words; empty if nothing is sharded.
        own: if something is, a hash of its bytes with these parts.
        note: why it cannot be compared.
        hides: it has the name of something that nbcomm gives to cells, which they do not see.
        imported: it is a module, or comes from one under this name.
    """

    type: str
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    device: str = ""
    nbytes: int | None = None
    length: int | None = None
    parameters: int | None = None
    value: str = ""
    shard: str = ""
    digest: bytes | None = None
    part: str = ""
    own: bytes = b""
    note: str = ""
    hides: bool = False
    imported: bool = False


@dataclass(frozen=True)
class Variable:
    """A name, and what the ranks have under it.

    Attributes:
        name: the name, or the expression that was asked for.
        seen: for each rank that has it, its value's description.
        absent: for each other rank, the reason.
    """

    name: str
    seen: Mapping[int, Seen]
    absent: Mapping[int, str] = field(default_factory=dict)

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The ranks whose values are equal, together; ordered by their lowest rank.

        Of a sharded value these are the ranks that have parts of one layout, unless an earlier rank has another copy of
        the same part.
        """
        alike: dict[Any, list[int]] = {}
        first: dict[Any, bytes] = {}
        for rank, one in sorted(self.seen.items()):
            if one.digest is not None:
                is_first = first.setdefault((one.digest, one.part), one.own) == one.own
                alike.setdefault((one.digest, *(() if is_first else (one.part, one.own))), []).append(rank)
        return tuple(map(tuple, alike.values()))

    @property
    def parts(self) -> int:
        """How many different parts the ranks have of a sharded value; 0 if it is not sharded."""
        return len({one.part for one in self.seen.values()} - {""})

    def counterpart(self, rank: int) -> int:
        """Return with which rank's value this one's is compared: the lowest one's, of shards that of the same part."""
        part, known = self.seen[rank].part, [other for other, one in self.seen.items() if one.digest is not None]
        same = [other for other in known if self.seen[other].part == part and other < rank]
        return min(same or known)

    @property
    def verdict(self) -> str:
        """In a word: equal, sharded, different, missing (on some rank), incomparable, or alone (one rank was asked)."""
        if self.absent:
            return "missing"
        if len(self.seen) == 1:
            return "alone"
        if any(one.digest is None for one in self.seen.values()):
            return "incomparable"
        if len(self.groups) > 1:
            return "different"
        return "sharded" if self.parts else "equal"


def merge(answers: Mapping[int, Mapping[str, Mapping[str, Any]]], names: Sequence[str] = ()) -> list[Variable]:
    """Combine what the ranks have answered, name by name.

    Args:
        answers: by rank and name, the results of `nbcomm.rank.variables.describe.describe`.
        names: in this order; by default all names, ascending.
    """
    found = []
    for name in dict.fromkeys(names) or sorted(set().union(*answers.values())):
        seen, absent = {}, {}
        for rank, said in sorted(answers.items()):
            fields = said.get(name, {"absent": f"{name} is not defined"})
            if "absent" in fields:
                absent[rank] = fields["absent"]
            else:
                seen[rank] = Seen(**fields)
        found.append(Variable(name, seen, absent))
    return found


# ── shown ───────────────────────────────────────────────────────────────────────────────────────────


def table_text(variables: Sequence[Variable], *, imports: bool = True) -> str:
    """Return the table as text, with or without what is imported."""
    rows = _rows(variables, imports=imports)
    head, cells = _table(rows[:_ROWS])
    wrapped = [[*row[:2], *map(_wrapped, row[2:])] for row in cells]
    return "\n".join([*_sentences(variables, rows), *(aligned((head, wrapped)) if rows else [])])


def table_html(variables: Sequence[Variable], *, imports: bool = True) -> str:
    """Return the table as HTML; its only style is that texts begin at the left, where a notebook puts them right."""
    rows = _rows(variables, imports=imports)
    said = "".join(f"<div>{html.escape(sentence)}</div>" for sentence in _sentences(variables, rows))
    table = marked_up(_table(rows[:_ROWS]), row_headers=True) if rows else ""
    return said + re.sub(r"<(t[hd])\b", r'<\1 style="text-align: left"', table)


def _rows(variables: Sequence[Variable], *, imports: bool) -> list[Variable]:
    found = [variable for variable in variables if variable.seen]
    return [each for each in found if imports or not all(one.imported for one in each.seen.values())]


def _sentences(variables: Sequence[Variable], rows: Sequence[Variable]) -> list[str]:
    """Return how many variables there are, which are not equal, and which no rank has."""
    nowhere = [variable for variable in variables if not variable.seen]
    imports = len(variables) - len(rows) - len(nowhere)
    left_out = [f"{imports} import{'' if imports == 1 else 's'} left out (--imports)"] if imports else []
    said = []
    if rows or not nowhere:
        ranks = sorted({rank for variable in rows for rank in (*variable.seen, *variable.absent)})
        many = (
            f"{len(rows)} variable{'' if len(rows) == 1 else 's'} on {named(ranks)}"
            if rows
            else "the ranks have no variables yet"
        )
        kinds: dict[str, list[str]] = {}
        for variable in rows:
            kinds.setdefault(variable.verdict, []).append(variable.name)
        apart = [
            f"{words}: {', '.join(map(_cut, kinds[kind][:_NAMES]))}{', …' if len(kinds[kind]) > _NAMES else ''}"
            for kind, words in _SUMMED.items()
            if kind in kinds
        ]
        equal = (
            [f"{'all' if len(kinds['equal']) == len(rows) else len(kinds['equal'])} equal"] if "equal" in kinds else []
        )
        said.append("; ".join([many, *equal, *apart, *left_out]))
    if len(rows) > _ROWS:
        said.append(f"The first {_ROWS:,} are shown. Name those that you want to see: %distributed who NAME …")
    return [*said, *_hiding(rows), *map(absence, nowhere)]


def _hiding(variables: Sequence[Variable]) -> list[str]:
    """Return which variables have names of nbcomm's."""
    names = [variable.name for variable in variables if any(one.hides for one in variable.seen.values())]
    if not names:
        return []
    that = "that of nbcomm" if len(names) == 1 else "those of nbcomm"
    hide = "hides" if len(names) == 1 else "hide"
    return [f"{', '.join(names)} {hide} {that}, which the next cell has again after: del {', '.join(names)}"]


def absence(variable: Variable) -> str:
    """Describe why some ranks do not have it, in a sentence."""
    whys: dict[str, list[int]] = {}
    for rank, why in variable.absent.items():
        whys.setdefault(why, []).append(rank)
    said = [f"{why} ({named(ranks)})" for why, ranks in whys.items()]
    return "; ".join([*said[:_GROUPS], *(["…"] if len(said) > _GROUPS else [])]) + "."


_SUMMED = {
    "sharded": "sharded",
    "different": "different",
    "missing": "missing somewhere",
    "incomparable": "cannot be compared",
}


def _table(variables: Sequence[Variable]) -> Table:
    """Return the table, a row for each variable; empty columns are left out."""
    columns: dict[str, list[str]] = {
        "name": [shortened(variable.name, _LONGEST) for variable in variables],
        "on the ranks": [presence(variable) for variable in variables],  # a narrow page must not cut it off
        "type": [_each(variable, lambda one: one.type) for variable in variables],
        "shape": [_each(variable, _shape) for variable in variables],
        "dtype": [_each(variable, lambda one: one.dtype) for variable in variables],
        "device": [_device(variable) for variable in variables],
        "size": [_each(variable, _size) for variable in variables],
        "value": [_each(variable, lambda one: one.value) for variable in variables],
    }
    shown = {name: cells for name, cells in columns.items() if any(cells)}
    return list(shown), [list(row) for row in zip(*shown.values(), strict=True)]


def presence(variable: Variable) -> str:
    """Describe where a variable is equal, different or missing.

    >>> one, two = Seen("int", digest=b"1"), Seen("int", digest=b"2")
    >>> presence(Variable("x", {0: one, 1: one, 2: two}))
    'different: 0-1 | 2'
    """
    parts = [f"missing on {fold(variable.absent)}"] if variable.absent else []
    for why in dict.fromkeys(one.note for one in variable.seen.values() if one.note):
        ranks = [rank for rank, one in variable.seen.items() if one.note == why]
        parts.append(why if len(ranks) == len(variable.seen) else f"{why} (on {fold(ranks)})")
    groups = variable.groups
    if variable.parts:
        copies = len(groups) == 1 and variable.parts < len(variable.seen)
        parts.append("sharded; replicas equal" if copies else "sharded")
    elif len(groups) == 1 and len(groups[0]) > 1:
        parts.append(
            "equal" if len(groups[0]) == len(variable.seen) + len(variable.absent) else f"equal on {fold(groups[0])}"
        )
    if len(groups) > 2 and all(len(group) == 1 for group in groups):
        parts.append("different on each rank")
    elif len(groups) > 1:
        shown = " | ".join(map(fold, groups[:_GROUPS]))
        parts.append(f"different: {shown}{' | …' if len(groups) > _GROUPS else ''}")
    return "; ".join(parts)


def _each(variable: Variable, look: Callable[[Seen], str]) -> str:
    """Describe what the ranks have, ranks that agree together: all of them, unless they are too many to read."""
    texts: dict[str, list[int]] = {}
    for rank, one in variable.seen.items():
        texts.setdefault(look(one), []).append(rank)
    if len(texts) == 1:
        return next(iter(texts))
    shown = [f"[{fold(ranks)}] {text or '–'}" for text, ranks in texts.items()][:_TALL]
    more = sum(map(len, [*texts.values()][_TALL:]))
    return "\n".join([*shown, *([f"… and {more} more ranks"] if more else [])])


def _wrapped(cell: str) -> str:
    """Wrap a cell's lines at words, as a page does by itself."""
    return "\n".join(
        textwrap.fill(line, _WIDE, subsequent_indent="    " * (line[:1] == "["), break_on_hyphens=False)
        for line in cell.split("\n")
    )


def _cut(text: str) -> str:
    return shortened(text, _TEXT)


def _device(variable: Variable) -> str:
    """Describe the device; the ranks' own GPUs are one place: ``cuda:0-3``."""
    devices = {one.device for one in variable.seen.values()}
    kinds = {device.partition(":")[0] for device in devices}
    numbers = [device.partition(":")[2] for device in devices]
    if len(kinds) == 1 and len(devices) > 1 and all(number.isdecimal() for number in numbers):
        return f"{kinds.pop()}:{fold(map(int, numbers))}"
    return _each(variable, lambda one: one.device)


def _shape(one: Seen) -> str:
    if one.shape is None:
        return one.shard
    return f"{one.shape}, {one.shard}" if one.shard else str(one.shape)


def _size(one: Seen) -> str:
    if one.parameters is not None:
        return f"{one.parameters:,} parameter{'' if one.parameters == 1 else 's'}"
    if one.nbytes is not None:
        return amount(one.nbytes)
    if one.length is None:
        return ""
    if one.type in ("bytes", "bytearray"):
        return amount(one.length)
    word = "character" if one.type == "str" else "item"
    return f"{one.length:,} {word}{'' if one.length == 1 else 's'}"
