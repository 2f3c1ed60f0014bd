"""The wait graph: which ranks may continue, and which wait forever, by the reports of all ranks.

A rank whose main thread runs is *free*: it may still issue any call, and so may a rank that has threads. A wait in a
collective can end once all members have issued it; in a send or receive, once the other end has. A rank has several
waits: its main thread's, and those of its *lanes*, nbcomm's own threads that carry on what a cell has begun. When one
of them has ended, the rank may issue any call again, also if its part of the cell is over. So the ranks that may
continue are the least set that contains the free ranks, and every rank with a wait whose missing ranks are all in the
set (for a receive that accepts any source, at least one). A stuck rank waits forever if its main thread's wait cannot
end so, though it may be in the set by a lane.

Why snapshots of different moments do not deceive. A rank reads whether it is stuck, then in what its lanes wait, then
which other threads it has, then its counts, and counts only grow. Suppose that some waits that were judged to last
forever were left after they had been read; take the first one. The call that it needed was issued by a rank outside the
set whose counts lacked it, so after that rank's snapshot. Who issued it there? Its main thread and its lanes had ended
their part, so they issue nothing more; or they had left, earlier still, a wait that was judged to last forever. And it
had no other threads: one that was begun before threads were read would have been counted, and one that was begun later
was begun by a thread or lane that had left such a wait by then. So there is no first one, and a verdict stays true.

A collective that has failed on a rank after it had begun there (gloo refuses some calls only then) counts as not issued
by it: that rank takes no more part in it, and says so before it issues anything else.

How messages match: a receive from a named source reserves the next message of that sender as soon as it is issued. A
receive that accepts any source takes a message that no receive has reserved, and is a receive from that sender from
then on. Until then it may match any rank's send.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ..protocol import CollectiveState, MessageCount, PendingCall
from ..protocol.rank_lists import read

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
    def lanes(self) -> Sequence[PendingCall]:
        """The calls in which its lanes wait, also when its part has ended; each of them for its own."""
        return () if self.state == "dead" else self.doing.lanes

    def failed_in(self, op: PendingCall) -> bool:
        """Return whether it has issued a collective that has failed there, and so takes no part in it any more."""
        return op.kind == "collective" and op.seq in self.doing.failed.get(op.group, ())

    @property
    def free(self) -> bool:
        """Whether it may still issue any call, whatever the other ranks do."""
        if self.state == "dead":
            return False
        return self.doing.threads > 0 or (self.state not in ENDED and not self.waits)


class Absentees:
    """The ranks that have not arrived at a call: one object for all the ranks that wait there.

    If each of them had a set of its own, the work would grow with the square of the ranks.

    Attributes:
        ranks: the ranks.
        able: how many of them may continue.
        needs: the needs of those who wait for them.
    """

    def __init__(self, ranks: frozenset[int], going: set[int]) -> None:
        self.ranks = ranks
        self.able = len(ranks & going)
        self.needs: list[Need] = []


@dataclass(frozen=True, eq=False)
class Need:
    """A call that a rank or one of its lanes is stuck in, and the ranks that have not arrived there.

    Attributes:
        rank: the rank.
        op: the call.
        absentees: the ranks that have not arrived.
        among_them: whether the rank itself is one of these, though it does not wait for itself.
    """

    rank: int
    op: PendingCall
    absentees: Absentees
    among_them: bool = False

    @property
    def missing(self) -> frozenset[int]:
        """The ranks that it waits for."""
        return self.absentees.ranks - {self.rank} if self.among_them else self.absentees.ranks

    @property
    def misses(self) -> int:
        """The number of ranks that it waits for."""
        return len(self.absentees.ranks) - self.among_them

    @property
    def from_anyone(self) -> bool:
        """Whether any one of the missing ranks is enough."""
        return self.op.kind == "recv" and self.op.peer is None

    @property
    def by_itself(self) -> bool:
        """Whether the wait ends whatever the other ranks do: by its timeout, or because it has failed already."""
        return self.op.limited or self.op.lost

    def able(self, going: Collection[int]) -> int:
        """Return how many of the missing ranks may continue, if these ranks do."""
        return self.absentees.able - (self.among_them and self.rank in going)

    def may_end(self, going: Collection[int]) -> bool:
        """Tell whether the wait may still end, if these ranks may continue."""
        if self.by_itself or not self.misses:
            return True
        return self.able(going) >= (1 if self.from_anyone else self.misses)


class WorldReport:
    """All ranks, the needs of the stuck ranks, the ranks that may continue, and those that wait forever.

    Attributes:
        size: the number of ranks with a report.
        ranks: all known ranks, by rank.
        going: the ranks that may continue.
        needs: for each stuck rank, the calls of which it awaits one.
        lanes: for each rank with lanes that wait, the calls in which they do.
        vain: the needs of the ranks that wait forever.
    """

    def __init__(self, reports: Mapping[int, RankReport]) -> None:
        self.size = len(reports)
        self.ranks = dict(sorted(reports.items()))
        self._messages: dict[tuple[int, str], dict[tuple[str, int | None, int], int]] = {}
        self._absent: dict[object, Absentees] = {}
        waits = [op for report in reports.values() for op in (*report.waits, *report.lanes)]
        awaited = {rank for ranks in {op.ranks for op in waits} for rank in read(ranks)}
        awaited.update(op.peer for op in waits if op.peer is not None)
        for rank in awaited - self.ranks.keys():
            self.ranks[rank] = RankReport(rank, "running")  # nothing is known about it, so it may do anything
        self.going = {rank for rank, report in self.ranks.items() if report.free}
        self.needs = {
            rank: [self.need(rank, op) for op in report.waits] for rank, report in self.ranks.items() if report.waits
        }
        self.lanes = {
            rank: [self.need(rank, op) for op in report.lanes] for rank, report in self.ranks.items() if report.lanes
        }
        self.vain = self._let_go()

    def _let_go(self) -> dict[int, list[Need]]:
        """Find all ranks that may continue, one by another; return the needs of the stuck ranks among the others."""
        lacked: dict[int, list[Absentees]] = {}
        for absentees in self._absent.values():
            for rank in absentees.ranks:
                lacked.setdefault(rank, []).append(absentees)
        mains = {need: None for needs in self.needs.values() for need in needs}
        everybody = [*mains, *(need for needs in self.lanes.values() for need in needs)]
        for need in everybody:
            need.absentees.needs.append(need)
        vain = dict(self.needs)
        freed = [need for need in everybody if need.may_end(self.going)]
        while freed:
            need = freed.pop()
            if need in mains:  # the end of a lane's wait is not that of the main thread's
                vain.pop(need.rank, None)
            if need.rank in self.going:
                continue
            self.going.add(need.rank)
            for absentees in lacked.get(need.rank, ()):
                absentees.able += 1
                # The first is enough for a receive from anyone, the last was missing in all else. One more of either:
                # a rank among them does not count for itself.
                if absentees.able <= 2 or absentees.able >= len(absentees.ranks) - 1:
                    freed += [need for need in absentees.needs if need.may_end(self.going)]
        return vain

    def need(self, rank: int, op: PendingCall) -> Need:
        """Return what a rank needs in a call that it waits in."""
        if op.kind == "collective":
            missing = (member for member in op.members if not self._has_issued(member, op))
            absentees = self._shared((op.group, op.seq, op.ranks), missing)
        elif self._is_on_its_way(rank, op):
            absentees = self._shared(None, ())
        elif op.peer is not None:
            return Need(rank, op, self._shared(op.peer, (op.peer,)))
        else:
            absentees = self._shared(op.ranks, op.members)
        return Need(rank, op, absentees, rank in absentees.ranks)

    def _shared(self, key: object, ranks: Iterable[int]) -> Absentees:
        """Return the absentees that are known by this key, which are these ranks."""
        if key not in self._absent:
            self._absent[key] = Absentees(frozenset(ranks), self.going)
        return self._absent[key]

    def _has_issued(self, rank: int, op: PendingCall) -> bool:
        return self.ranks[rank].doing.issued.get(op.group, 0) >= op.seq and not self.ranks[rank].failed_in(op)

    def _is_on_its_way(self, rank: int, op: PendingCall) -> bool:
        """Return whether the other end of a rank's message has arrived."""
        if op.peer is None:
            members = self._shared(op.ranks, op.members).ranks
            return self._number(rank, "received", op, None) == 0 or any(
                number > self._number(rank, "received", op, other)
                for other, number in self._senders.get((op.group, rank, op.tag), {}).items()
                if other != rank and other in members
            )
        if op.kind == "recv":
            return self._number(op.peer, "sent", op, rank) >= op.seq
        # The other end's receive that accepts any source may take this message.
        return self._number(op.peer, "received", op, rank) >= op.seq or self._number(op.peer, "received", op, None) > 0

    @cached_property
    def _senders(self) -> dict[tuple[str, int | None, int], dict[int, int]]:
        """How many messages each rank has sent in a group, to a peer, with a tag."""
        found: dict[tuple[str, int | None, int], dict[int, int]] = {}
        for sender, report in self.ranks.items():
            for count in report.doing.sent:
                numbers = found.setdefault((count.group, count.peer, count.tag), {})
                numbers[sender] = numbers.get(sender, 0) + count.number
        return found

    def _number(self, rank: int, which: str, op: PendingCall, peer: int | None) -> int:
        """Return how many messages of the call's group and tag a rank has "sent" to a peer, or "received" from it."""
        index = self._messages.get((rank, which))
        if index is None:
            index = self._messages[rank, which] = {}
            counts: Iterable[MessageCount] = getattr(self.ranks[rank].doing, which)
            for count in counts:
                key = count.group, count.peer, count.tag
                index[key] = index.get(key, 0) + count.number
        return index.get((op.group, peer, op.tag), 0)
