"""The wait graph: which ranks may continue, and which wait forever, by the reports of all ranks.

A rank whose main thread runs is *free*: it may still issue any call, and so may a rank that has threads. A rank that
is stuck in a collective can continue once all members have issued it; in a send or receive, once the other end has.
So the ranks that may continue are the least set that contains the free ranks, and every stuck rank whose missing
ranks are all in the set (for a receive that accepts any source, at least one). A stuck rank outside the set waits
forever.

Why snapshots of different moments do not deceive. A rank reads whether it is stuck, then its threads, then its counts,
and counts only grow. Suppose that some ranks that were judged to wait forever left their waits after their snapshots;
take the first one. The call that it needed was issued by a rank whose counts lacked it, so after that rank's snapshot,
too. But that rank has no threads. Either it had ended its part, so it issues nothing more; or it was itself judged to
wait forever, so it had left its wait earlier. So there is no first one, and a verdict stays true.

How messages match: a receive from a named source reserves the next message of that sender as soon as it is issued. A
receive that accepts any source takes a message that no receive has reserved, and is a receive from that sender from
then on. Until then it may match any rank's send.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..protocol import CollectiveState, MessageCount, PendingCall

ENDED = {
    "finished": "has finished the cell",
    "failed": "failed",
    "interrupted": "was interrupted",
    "idle": "does not run this cell",
    "dead": "is dead",
}
"""The states in which a main thread issues nothing more during this cell."""


@dataclass(frozen=True)
class RankReport:
    """What is known about one rank.

    Attributes:
        rank: its rank in the world.
        state: "running" (its part of the cell has not ended), "finished", "failed", "interrupted", "idle" (it
            does not run the cell) or "dead".
        note: how it died, or what it raised.
        doing: its last report.
    """

    rank: int
    state: str
    note: str = ""
    doing: CollectiveState = field(default_factory=CollectiveState)

    @property
    def waits(self) -> Sequence[PendingCall]:
        """The calls that it is stuck in; it waits for one of them."""
        return () if self.state in ENDED else self.doing.waits

    @property
    def free(self) -> bool:
        """Whether it may still issue any call, whatever the other ranks do."""
        if self.state == "dead":
            return False
        return self.doing.threads > 0 or (self.state not in ENDED and not self.waits)


@dataclass(frozen=True)
class Need:
    """A call that a rank is stuck in, and the ranks that have not arrived there.

    Attributes:
        op: the call.
        missing: the ranks that have not arrived.
    """

    op: PendingCall
    missing: frozenset[int]

    @property
    def from_anyone(self) -> bool:
        """Whether any one of the missing ranks is enough."""
        return self.op.kind == "recv" and self.op.peer is None

    @property
    def by_itself(self) -> bool:
        """Whether the wait ends whatever the other ranks do: by its timeout, or because it has failed already."""
        return self.op.limited or self.op.lost

    def may_end(self, going: Collection[int]) -> bool:
        """Tell whether the wait may still end, if these ranks may continue."""
        if self.by_itself or not self.missing:
            return True
        return not self.missing.isdisjoint(going) if self.from_anyone else self.missing.issubset(going)


class WorldReport:
    """All ranks, the needs of the stuck ranks, the ranks that may continue, and those that wait forever.

    Attributes:
        size: the number of ranks with a report.
        ranks: all known ranks, by rank.
        needs: for each stuck rank, the calls of which it awaits one.
        going: the ranks that may continue.
        vain: the needs of the ranks that wait forever.
    """

    def __init__(self, reports: Mapping[int, RankReport]) -> None:
        self.size = len(reports)
        self.ranks = dict(sorted(reports.items()))
        self._messages: dict[tuple[int, str], dict[tuple[str, int | None, int], int]] = {}
        self._absent: dict[tuple[str, int, tuple[int, ...]], frozenset[int]] = {}
        for op in [op for report in reports.values() for op in report.waits]:
            for rank in {*op.members, *([] if op.peer is None else [op.peer])} - self.ranks.keys():
                self.ranks[rank] = RankReport(rank, "running")  # nothing is known about it, so it may do anything
        self.needs = {
            rank: [Need(op, self.missing(rank, op)) for op in report.waits]
            for rank, report in self.ranks.items()
            if report.waits
        }
        self.going = {rank for rank, report in self.ranks.items() if report.free}
        self.vain = dict(self.needs)
        while freed := [rank for rank, needs in self.vain.items() if any(need.may_end(self.going) for need in needs)]:
            self.going.update(freed)
            for rank in freed:
                del self.vain[rank]

    def missing(self, rank: int, op: PendingCall) -> frozenset[int]:
        """Return the ranks that a rank's call needs and that have not arrived."""
        if op.kind == "collective":
            return self._absentees(op) - {rank}
        if op.peer is not None:
            if op.kind == "recv":
                there = self._number(op.peer, "sent", op, rank) >= op.seq
            else:  # the other end's receive that accepts any source may take this message
                there = self._number(op.peer, "received", op, rank) >= op.seq
                there = there or self._number(op.peer, "received", op, None) > 0
            return frozenset() if there else frozenset({op.peer})
        others = frozenset(op.members) - {rank}
        on_its_way = self._number(rank, "received", op, None) == 0 or any(
            self._number(other, "sent", op, rank) > self._number(rank, "received", op, other) for other in others
        )
        return frozenset() if on_its_way else others

    def _absentees(self, op: PendingCall) -> frozenset[int]:
        """Return the members that have not arrived at a collective, computed once for all ranks that wait there."""
        key = op.group, op.seq, tuple(op.members)
        if key not in self._absent:
            self._absent[key] = frozenset(
                member for member in op.members if self.ranks[member].doing.issued.get(op.group, 0) < op.seq
            )
        return self._absent[key]

    def _number(self, rank: int, which: str, op: PendingCall, peer: int | None) -> int:
        """Return how many messages of the call's group and tag a rank has sent to a peer, or received from it."""
        index = self._messages.get((rank, which))
        if index is None:
            index = self._messages[rank, which] = {}
            doing = self.ranks[rank].doing
            counts: Iterable[MessageCount] = doing.sent if which == "sent" else doing.received
            for count in counts:
                key = count.group, count.peer, count.tag
                index[key] = index.get(key, 0) + count.number
        return index.get((op.group, peer, op.tag), 0)
