"""Where a variable differs between ranks, in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...rank_spec import named
from .table import Variable


@dataclass(frozen=True)
class Outcome:
    """How ranks with another value than the reference differ from it.

    Attributes:
        ranks: those that have it; among each other they are equal.
        found: what the first of them has found. ``leaves``: how many parts the two values have, ``different``: how many
            of them differ, ``first``: the first of those, ``absolute`` and ``relative``: the largest differences of
            numbers, each with its part and its index, ``close``: how many numbers differ by no more than the tolerance.
        other: the rank with which it was compared.
    """

    ranks: tuple[int, ...]
    found: Mapping[str, Any]
    other: int = 0

    @property
    def equal(self) -> bool:
        """Whether all numbers that differ do so by no more than the tolerance, and nothing else does."""
        return not self.found["different"] and bool(self.found["close"])


@dataclass(frozen=True)
class Comparison:
    """A variable, compared between ranks; ``str`` describes it.

    Attributes:
        name: the name, or the expression.
        reference: the rank with which the others are compared: the lowest that has it.
        variable: what each rank has.
        outcomes: of the ranks that have another value, those that agree together.
        atol: how far apart numbers may be and still count as equal.
    """

    name: str
    reference: int
    variable: Variable
    outcomes: tuple[Outcome, ...]
    atol: float = 0.0

    @property
    def equal(self) -> bool:
        """Whether all ranks have it, and it is equal on all of them."""
        known = all(one.digest is not None for one in self.variable.seen.values())
        return known and not self.variable.absent and all(outcome.equal for outcome in self.outcomes)

    def __str__(self) -> str:
        seen, absent = self.variable.seen, self.variable.absent
        first = self.reference
        shape = seen[first].shape
        what = " ".join(filter(None, (seen[first].type, seen[first].dtype, "" if shape is None else str(shape))))
        if len(seen) == 1 and not absent:
            return f"{self.name} ({what}) was read on rank {first} only, so there is nothing to compare it with."
        alike = next(group for group in self.variable.groups if first in group)
        sharded = bool(self.variable.parts)
        if len(alike) == len(seen) and not absent:
            copies = ", and replicas of a part are equal" if self.variable.parts < len(seen) else ""
            more = f": each has its part of one layout{copies}" if sharded else ""
            return f"{self.name} ({what}) is {'sharded' if sharded else 'equal'} on {named(alike)}{more}."
        lines = {}
        if len(alike) > 1:
            lines[alike[1]] = f"{named(alike[1:])}: {'sharded as on' if sharded else 'equal to'} rank {first}."
        for outcome in self.outcomes:
            lines[outcome.ranks[0]] = f"{named(outcome.ranks)}: {_sentence(outcome, self.atol)}."
        for note in dict.fromkeys(one.note for one in seen.values() if one.note):
            ranks = [rank for rank, one in seen.items() if one.note == note]
            lines[ranks[0]] = f"{named(ranks)}: {note}."
        for why in dict.fromkeys(absent.values()):
            ranks = [rank for rank, its in absent.items() if its == why]
            lines[ranks[0]] = f"{named(ranks)}: {why}."
        return "\n".join(
            [f"{self.name} ({what}), compared with rank {first}:", *(lines[rank] for rank in sorted(lines))]
        )


def _sentence(outcome: Outcome, atol: float) -> str:
    found, first = outcome.found, outcome.other
    far = _largest(found)
    if outcome.equal:
        return f"equal to rank {first} within {atol:g}{f'; {far}' if far else ''}"
    if not found["different"]:
        return f"another value than on rank {first}, without a difference that can be shown"
    said = _PARTS[found["first"]["how"]](found["first"], f"rank {first}")
    if found["leaves"] > 1:
        count = found["different"]
        said = f"{count} of {found['leaves']} parts differ{'s' if count == 1 else ''}; first {said}"
    elif found["first"]["how"] == "value" or found["first"].get("total") == 1:
        far = far.removeprefix("largest ")
    return f"{said}; {far}" if far else said


def _elements(part: Mapping[str, Any], other: str) -> str:
    place = f"{part['path']}{part['index'] or ''}"
    values = f"{part['here']} here, {part['there']} on {other}"
    if part["total"] == 1 and not part["index"]:
        return f"{place}: {values}" if place else values
    count = f"{part['count']:,} of {part['total']:,} elements differ{'s' if part['count'] == 1 else ''}"
    lengths = part.get("lengths", (0, 0))
    many = f"; {lengths[0]:,} here, {lengths[1]:,} on {other}" if lengths[0] != lengths[1] else ""
    if part["path"]:
        return f"{place}: {values} ({count} there{many})"
    return f"{count}, first at {place}: {values}{many}"


def _text(part: Mapping[str, Any], other: str) -> str:
    lengths = part["lengths"]
    many = f" ({lengths[0]:,} long here, {lengths[1]:,} on {other})" if lengths[0] != lengths[1] else ""
    where = f"{part['path']}: " if part["path"] else ""
    place = f"{part['index'][0]:,}"
    return f"{where}the texts differ from position {place}: {part['here']} here, {part['there']} on {other}{many}"


def _value(part: Mapping[str, Any], other: str) -> str:
    where = f"{part['path']}: " if part["path"] else ""
    return f"{where}{part['here']} here, {part['there']} on {other}"


def _hidden(part: Mapping[str, Any], other: str) -> str:
    where = f"{part['path']}: " if part["path"] else ""
    return f"{where}{part['here']} here differs from the one on {other}"


_PARTS: dict[str, Callable[[Mapping[str, Any], str], str]] = {
    "elements": _elements,
    "text": _text,
    "value": _value,
    "type": _value,
    "hidden": _hidden,
    "lacking": lambda part, other: f"{part['path']}: missing here, {part['there']} on {other}",
    "extra": lambda part, other: f"{part['path']}: {part['here']} here, missing on {other}",
}


def _largest(found: Mapping[str, Any]) -> str:
    """Describe the largest differences, and where they are."""
    absolute, relative = found["absolute"], found["relative"]
    if absolute is None:
        return ""
    amount, path, index = absolute
    place = f"{path}{index or ''}"
    at = f" at {place}" if place else ""
    if relative is None:
        return f"largest difference {figure(amount)}{at}"
    share, *where = relative
    if where == [path, index]:
        return f"largest difference {figure(amount)} (relative {figure(share)}){at}"
    return (
        f"largest difference {figure(amount)}{at}, largest relative one {figure(share)} at {where[0]}{where[1] or ''}"
    )


def figure(number: float) -> str:
    """Write a difference shortly.

    >>> figure(0.5), figure(1 / 3), figure(10**400)
    ('0.5', '0.333333', '10^400 or so')
    """
    try:
        return f"{number:.6g}"
    except OverflowError:
        return f"10^{int(int(number).bit_length() * 0.30103)} or so"
