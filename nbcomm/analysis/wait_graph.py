"""Who may go on, and who waits for ever: what ranks report of themselves, taken together.

A rank whose main thread runs is *free*: it may do anything yet, and so may one that has threads. A rank that is stuck
in a collective can go on once all members have issued it; in a send or receive, once the other end has. So the ranks
that may go on are the least set that holds the free ones, and every stuck one whose missing ranks are all in it (of
a receive from anyone, some). Whoever is stuck outside of it waits for ever.

Why snapshots of different moments do not deceive. A rank looks whether it is stuck, then for threads, then at its
counts, and counts only grow. Suppose that some of the ranks judged to wait for ever left that wait after they had
looked; take the first. What it needed was issued by a rank whose counts lacked it, so after that one had looked, too.
But that one has no threads, and it had ended its part, so it issues nothing more; or it was judged itself, so it had
left its own wait before. So there is no first, and a verdict stays true.

How messages meet: a receive by name stands for the next message of its sender as soon as it is issued. A receive
from anyone takes one for which no receive stands, and is a receive from that sender from then on; until then it may
be the other end of anybody's send.
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
    """What is known of one rank.

    Attributes:
        rank: its rank in the world.
        state: "running" (its part of the cell has not ended), "finished", "failed", "interrupted", "idle" (it
            does not run the cell) or "dead".
        note: how it died, or what it raised.
        doing: what it said last.
    """

    rank: int
    state: str
    note: str = ""
    doing: CollectiveState = field(default_factory=CollectiveState)

    @property
    def waits(self) -> Sequence[PendingCall]:
        """What it is stuck in: one of these calls."""
        return () if self.state in ENDED else self.doing.waits

    @property
    def free(self) -> bool:
        """Whether it may issue anything yet, whatever the others do."""
        if self.state == "dead":
            return False
        return self.doing.threads > 0 or (self.state not in ENDED and not self.waits)


@dataclass(frozen=True)
class Need:
    """A call that a rank is stuck in, and who has not arrived there.

    Attributes:
        op: the call.
        missing: who has not.
    """

    op: PendingCall
    missing: frozenset[int]

    @property
    def from_anyone(self) -> bool:
        """Whether any of the missing would do."""
        return self.op.kind == "recv" and self.op.peer is None

    @property
    def by_itself(self) -> bool:
        """Whether the wait ends whatever the others do: by its timeout, or since it has failed already."""
        return self.op.limited or self.op.lost

    def may_end(self, going: Collection[int]) -> bool:
        """Whether it may yet end, if these ranks may go on."""
        if self.by_itself or not self.missing:
            return True
        return not self.missing.isdisjoint(going) if self.from_anyone else self.missing.issubset(going)


class WorldReport:
    """All ranks, what those that are stuck need, who may go on, and who waits in vain.

    Attributes:
        size: how many ranks were told of.
        ranks: all that are known of, by rank.
        needs: of each rank that is stuck, what it waits for: one of these.
        going: the ranks that may go on.
        vain: the needs of those that never will.
    """

    def __init__(self, standings: Mapping[int, RankReport]) -> None:
        self.size = len(standings)
        self.ranks = dict(sorted(standings.items()))
        self._messages: dict[tuple[int, str], dict[tuple[str, int | None, int], int]] = {}
        self._absent: dict[tuple[str, int, tuple[int, ...]], frozenset[int]] = {}
        for op in [op for standing in standings.values() for op in standing.waits]:
            for rank in {*op.members, *([] if op.peer is None else [op.peer])} - self.ranks.keys():
                self.ranks[rank] = RankReport(rank, "running")  # nothing is known of it, so it may do anything
        self.needs = {
            rank: [Need(op, self.missing(rank, op)) for op in standing.waits]
            for rank, standing in self.ranks.items()
            if standing.waits
        }
        self.going = {rank for rank, standing in self.ranks.items() if standing.free}
        self.vain = dict(self.needs)
        while freed := [rank for rank, needs in self.vain.items() if any(need.may_end(self.going) for need in needs)]:
            self.going.update(freed)
            for rank in freed:
                del self.vain[rank]

    def missing(self, rank: int, op: PendingCall) -> frozenset[int]:
        """Who has not arrived where a rank's call needs them."""
        if op.kind == "collective":
            return self._absentees(op) - {rank}
        if op.peer is not None:
            if op.kind == "recv":
                there = self._number(op.peer, "sent", op, rank) >= op.seq
            else:  # what the other end takes from anyone may be this
                there = self._number(op.peer, "received", op, rank) >= op.seq
                there = there or self._number(op.peer, "received", op, None) > 0
            return frozenset() if there else frozenset({op.peer})
        others = frozenset(op.members) - {rank}
        on_its_way = self._number(rank, "received", op, None) == 0 or any(
            self._number(other, "sent", op, rank) > self._number(rank, "received", op, other) for other in others
        )
        return frozenset() if on_its_way else others

    def _absentees(self, op: PendingCall) -> frozenset[int]:
        """Who has not arrived at a collective: the same set for all that wait there, and there may be many."""
        key = op.group, op.seq, tuple(op.members)
        if key not in self._absent:
            self._absent[key] = frozenset(
                member for member in op.members if self.ranks[member].doing.issued.get(op.group, 0) < op.seq
            )
        return self._absent[key]

    def _number(self, rank: int, which: str, op: PendingCall, peer: int | None) -> int:
        """How many messages of the call's group and tag a rank has sent to a peer, or received from it."""
        index = self._messages.get((rank, which))
        if index is None:
            index = self._messages[rank, which] = {}
            doing = self.ranks[rank].doing
            counts: Iterable[MessageCount] = doing.sent if which == "sent" else doing.received
            for count in counts:
                key = count.group, count.peer, count.tag
                index[key] = index.get(key, 0) + count.number
        return index.get((op.group, peer, op.tag), 0)
