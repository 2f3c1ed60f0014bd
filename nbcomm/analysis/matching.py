"""The calls that ranks made together in a cell: each rank's steps, paired with those of the other ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..protocol import CallRecord


@dataclass
class MatchedCall:
    """One collective, or one message, with each rank's record of it. No step may be added after a property was read.

    Attributes:
        name: "all_reduce"; "send" for a message.
        group: the process group's name.
        members: the ranks that it needs, in group order; of a message the sender and the receiver.
        seq: its sequence number in the group.
        steps: the record of each rank that arrived.
    """

    name: str
    group: str
    members: tuple[int, ...]
    seq: int
    steps: dict[int, CallRecord] = field(default_factory=dict)

    @cached_property
    def number(self) -> int:
        """Its number for people: the position among the calls that the cell has made of its group."""
        counted = max(step.number for step in self.steps.values())
        return self.seq if self.name == "sendrecv" else counted or self.seq

    @cached_property
    def missing(self) -> list[int]:
        """Members that did not arrive."""
        return [rank for rank in self.members if rank not in self.steps]

    @property
    def others(self) -> dict[str, list[int]]:
        """The members that called something else in its place, by the name of that call."""
        different: dict[str, list[int]] = {}
        for rank, step in sorted(self.steps.items()):
            if step.name != self.name and step.kind == "collective":
                different.setdefault(step.name, []).append(rank)
        return different

    @cached_property
    def began(self) -> float:
        """When the first rank arrived."""
        return min(step.began for step in self.steps.values())

    @cached_property
    def met(self) -> float:
        """When the last rank arrived; infinity if one is missing."""
        return float("inf") if self.missing else max(step.began for step in self.steps.values())

    @cached_property
    def ended(self) -> float:
        """When the call ended on its last rank; 0 if that is not known of any."""
        return max(step.ended for step in self.steps.values())

    @cached_property
    def nbytes(self) -> int:
        """The most bytes that a rank brought."""
        return max(step.nbytes for step in self.steps.values())

    @cached_property
    def line(self) -> str:
        """The line of the cell, if a rank knows it, else an empty text."""
        return next((step.line for step in self.steps.values() if step.line), "")


def matched_calls(steps: Mapping[int, Sequence[CallRecord]]) -> list[MatchedCall]:
    """Pair the ranks' steps, and return the calls in the order in which their first ranks arrived.

    Args:
        steps: the steps of each rank, in order.
    """
    found: dict[Any, MatchedCall] = {}
    for rank, own in steps.items():
        rings = 0
        for step in own:
            ends, seq = None, step.first
            if step.name == "sendrecv":  # two messages, and each rank counts its own
                key: Any = ("sendrecv", step.group, rings)
                seq = rings = rings + 1
            elif step.kind == "collective":
                # Several groups of a single rank may have the same name.
                key = ("collective", step.group, step.ranks, step.first)
            elif step.peer is None:
                continue  # a receive from any rank that never ended: its sender is not known
            else:
                ends = (rank, step.peer) if step.kind == "send" else (step.peer, rank)
                key = ("message", step.group, *ends, step.tag, step.first)
            if key not in found:
                found[key] = MatchedCall("send" if ends else step.name, step.group, ends or step.members, seq)
            found[key].steps[rank] = step
    for key, matched in found.items():
        if key[0] == "collective":  # if the ranks disagree, the name is what most of them called
            matched.name = Counter(step.name for step in matched.steps.values()).most_common(1)[0][0]
    return sorted(found.values(), key=lambda matched: matched.began)
