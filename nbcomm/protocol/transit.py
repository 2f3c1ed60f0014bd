"""A rank's calls on their way to the notebook: what ranks say alike, apart from what is one rank's own.

Ranks of a cell mostly make the same calls, at other times. So a message with calls travels in two parts. The shared
part has each different call once, the order in which they were made, and each group's members once. It is the same
bytes for all ranks that made the same calls, so the notebook reads it once. The own part has the times, the
sizes, and the lines of the cell: a call of torch's has a line only where the rank waited for long.

Each message has all that it needs, so a notebook that attaches later can read it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import cached_property
from operator import attrgetter
from typing import overload

import msgspec
from msgspec import structs

from .collectives import CallRecord, CollectiveState, PendingCall


class SharedPart(msgspec.Struct, array_like=True, frozen=True):
    """What is the same on all ranks that made the same calls.

    Attributes:
        groups: the members of each group that the message names, as `rank_lists` writes them. In the message itself,
            the ``ranks`` of a call are the place of this text.
        calls: the different calls, without what the other attributes and `OwnPart` say.
        which: for each call that was made, its place in ``calls``.
        first: its first sequence number.
        last: its last one.
        number: its number in the cell.
    """

    groups: list[str] = []
    calls: list[CallRecord] = []
    which: list[int] = []
    first: list[int] = []
    last: list[int] = []
    number: list[int] = []


class OwnPart(msgspec.Struct, array_like=True, frozen=True):
    """What differs between ranks that made the same calls; each attribute has an item for each call.

    Attributes:
        began: the times at which the calls began, `_TIME` bytes each; empty if all are 0.
        ended: the times at which they ended, in the same form.
        asked: the times at which Python began to wait for them, in the same form.
        nbytes: their sizes.
        line: the places of their lines in ``lines``.
        lines: the different lines.
    """

    began: bytes = b""
    ended: bytes = b""
    asked: bytes = b""
    nbytes: list[int] = []
    line: list[int] = []
    lines: list[str] = []


_TIME = 8
"""Bytes of a time."""

_alike = attrgetter("name", "kind", "group", "ranks", "failed", "peer", "tag")


def apart(
    doing: CollectiveState | None, steps: Sequence[CallRecord]
) -> tuple[CollectiveState | None, SharedPart | None, OwnPart | None]:
    """Take a message's calls apart.

    Args:
        doing: the rank's progress.
        steps: the calls that it made.

    Returns:
        The progress as it travels; and the two parts, each of them None if it would be empty.
    """
    groups: dict[str, int] = {}
    if doing is not None and (doing.waits or doing.beside or doing.lanes):
        waits, beside = _with_places(doing.waits, groups), _with_places(doing.beside, groups)
        doing = structs.replace(doing, waits=waits, beside=beside, lanes=_with_places(doing.lanes, groups))
    if not steps:
        return doing, SharedPart([*groups]) if groups else None, None
    calls: list[CallRecord] = []
    known: dict[object, int] = {}
    which: list[int] = []
    for step in steps:
        key: object = _alike(step) if step.gave is None else (_alike(step), *step.gave)
        if step.how is not None or step.before is not None or step.after is not None:
            key = len(which)  # it has values of its own
        place = known.get(key)
        if place is None:
            place = known[key] = len(calls)
            calls.append(_bare(step, groups))
        which.append(place)
    lines: dict[str, int] = {}
    own = OwnPart(
        _packed([step.began for step in steps]),
        _packed([step.ended for step in steps]),
        _packed([step.asked for step in steps]),
        [step.nbytes for step in steps],
        [lines.setdefault(step.line, len(lines)) for step in steps],
        [*lines],
    )
    first, last = [step.first for step in steps], [step.last for step in steps]
    return doing, SharedPart([*groups], calls, which, first, last, [step.number for step in steps]), own


def together(
    doing: CollectiveState | None, shared: SharedPart, own: OwnPart | None
) -> tuple[CollectiveState | None, Sequence[CallRecord]]:
    """Put together what `apart` has taken apart. What it gets may be other ranks', too, and is not changed.

    Raises:
        msgspec.DecodeError: the parts do not belong together.
    """
    try:
        if doing is not None and (doing.waits or doing.beside or doing.lanes):
            waits, beside = _with_members(doing.waits, shared.groups), _with_members(doing.beside, shared.groups)
            doing = structs.replace(doing, waits=waits, beside=beside, lanes=_with_members(doing.lanes, shared.groups))
    except (IndexError, ValueError) as error:
        raise msgspec.DecodeError(f"A message names a group that it does not describe: {error}") from error
    if own is None:
        return doing, []
    count = len(shared.which)
    shared_alike = count == len(shared.first) == len(shared.last) == len(shared.number)
    if not (shared_alike and count == len(own.nbytes) == len(own.line)) or not (
        {len(own.began), len(own.ended), len(own.asked)} <= {0, count * _TIME}
    ):
        raise msgspec.DecodeError("The two parts of a message are of different calls.")
    return doing, Steps(shared, own)


class Steps(Sequence[CallRecord]):
    """The calls of one rank, put together when somebody reads them: without a panel, nobody reads most cells'."""

    def __init__(self, shared: SharedPart, own: OwnPart) -> None:
        self._shared = shared
        self._own = own

    @cached_property
    def _calls(self) -> list[CallRecord]:
        shared, own, count = self._shared, self._own, len(self)
        calls = [structs.replace(call, ranks=shared.groups[int(call.ranks)]) for call in shared.calls]
        columns = zip(
            shared.which,
            shared.first,
            shared.last,
            shared.number,
            _unpacked(own.began, count),
            _unpacked(own.ended, count),
            _unpacked(own.asked, count),
            own.nbytes,
            own.line,
            strict=True,
        )
        return [
            structs.replace(
                calls[which],
                first=first,
                last=last,
                number=number,
                began=began,
                ended=ended,
                asked=asked,
                nbytes=nbytes,
                line=own.lines[line],
            )
            for which, first, last, number, began, ended, asked, nbytes, line in columns
        ]

    def __len__(self) -> int:
        return len(self._shared.which)

    @overload
    def __getitem__(self, place: int) -> CallRecord: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[CallRecord]: ...
    def __getitem__(self, place: int | slice) -> CallRecord | Sequence[CallRecord]:
        return self._calls[place]

    def __iter__(self) -> Iterator[CallRecord]:
        return iter(self._calls)

    def __eq__(self, other: object) -> bool:
        return self._calls == [*other] if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as a list's

    def __repr__(self) -> str:
        return repr(self._calls)


def _bare(step: CallRecord, groups: dict[str, int]) -> CallRecord:
    ranks = str(groups.setdefault(step.ranks, len(groups)))
    own = {"first": 0, "last": 0, "number": 0, "began": 0.0, "ended": 0.0, "asked": 0.0, "nbytes": 0, "line": ""}
    return structs.replace(step, ranks=ranks, **own)


def _with_places(calls: Sequence[PendingCall], groups: dict[str, int]) -> list[PendingCall]:
    return [structs.replace(call, ranks=str(groups.setdefault(call.ranks, len(groups)))) for call in calls]


def _with_members(calls: Sequence[PendingCall], groups: Sequence[str]) -> list[PendingCall]:
    return [structs.replace(call, ranks=groups[int(call.ranks)]) for call in calls]


def _packed(times: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(times)}d", *times) if any(times) else b""


def _unpacked(times: bytes, count: int) -> Sequence[float]:
    return struct.unpack(f"<{count}d", times) if times else [0.0] * count
