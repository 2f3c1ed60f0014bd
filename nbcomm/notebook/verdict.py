"""Judges who waits for whom, and whether in vain: a pure function of what all ranks report.

A rank whose main thread runs is *free*: it may do anything yet. A rank that is stuck in a collective can go on once
all members have issued it; in a send or receive, once the other end has. So the ranks that may go on are the least
set that holds the free ones, and every stuck one whose missing ranks may all go on. Whoever is outside of it waits
for ever: each of them needs one that has ended its part, is dead, or is itself outside.

Why snapshots of different moments do not deceive: a rank reports its counts after it has seen that it is stuck, and
counts only grow. Take the ranks that were judged to wait for ever, and suppose that some of them went on after their
snapshot; look at the first. What it waited for was issued by a rank that had not done so in its own snapshot: one
that has ended its part, which issues nothing more, or another of those judged, which must have gone on before. So
there is no first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .. import ranks as rank_sets
from ..messages import Count, Doing, Op

_SENTENCES = 3
"""So many calls are told of in a verdict; a world that is stuck in more is told by their number."""

_ENDED = {
    "finished": "has finished the cell",
    "failed": "failed",
    "interrupted": "was interrupted",
    "idle": "does not run this cell",
}


@dataclass(frozen=True)
class Standing:
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
    doing: Doing = field(default_factory=Doing)

    @property
    def waits(self) -> Sequence[Op]:
        """What it is stuck in: one of these calls."""
        return self.doing.waits if self.state == "running" else ()

    @property
    def free(self) -> bool:
        """Whether it may do anything yet."""
        if self.state == "dead":
            return False
        return self.doing.threads > 0 or (self.state == "running" and not self.waits)


@dataclass(frozen=True)
class Wait:
    """A rank that is stuck.

    Attributes:
        rank: which.
        ops: it waits for one of these.
        missing: the ranks that have not arrived at the first of them, ascending.
    """

    rank: int
    ops: Sequence[Op]
    missing: list[int]


@dataclass(frozen=True)
class Verdict:
    """What follows.

    Attributes:
        waits: every rank that is stuck, in rank order.
        stuck: those that wait in vain.
        text: why, if any wait is in vain; else for whom they wait; empty if nobody waits.
    """

    waits: list[Wait] = field(default_factory=list)
    stuck: list[int] = field(default_factory=list)
    text: str = ""

    @property
    def hopeless(self) -> bool:
        """Whether a wait can never end."""
        return bool(self.stuck)


def judge(standings: Mapping[int, Standing]) -> Verdict:
    """Judge what all ranks of a world report.

    Args:
        standings: every rank of the world, by rank.
    """
    ranks = dict(sorted(standings.items()))
    waits = [
        Wait(rank, standing.waits, sorted(set().union(*(_missing(ranks, rank, op) for op in standing.waits[:1]))))
        for rank, standing in ranks.items()
        if standing.waits
    ]
    if not waits:
        return Verdict()
    going = _going(ranks)
    stuck = [wait.rank for wait in waits if wait.rank not in going]
    text = _why(ranks, [wait for wait in waits if wait.rank in stuck]) if stuck else _for_whom(ranks, waits)
    return Verdict(waits, stuck, text)


# ── who may go on ───────────────────────────────────────────────────────────────────────────────────


def _going(ranks: Mapping[int, Standing]) -> set[int]:
    going = {rank for rank, standing in ranks.items() if standing.free}
    waiting = {rank: standing.waits for rank, standing in ranks.items() if standing.waits and rank not in going}
    while True:
        freed = {rank for rank, ops in waiting.items() if any(_may_end(ranks, going, rank, op) for op in ops)}
        if not freed:
            return going
        going |= freed
        for rank in freed:
            del waiting[rank]


def _may_end(ranks: Mapping[int, Standing], going: set[int], rank: int, op: Op) -> bool:
    if op.limited:
        return True
    missing = _missing(ranks, rank, op)
    if op.kind == "recv" and op.peer is None:  # any one of them will do
        return not missing or bool(missing & going)
    return missing <= going


def _missing(ranks: Mapping[int, Standing], rank: int, op: Op) -> set[int]:
    """Who has not arrived at a call; of a receive from anyone, everybody it could come from."""
    if op.kind == "collective":
        return {m for m in op.members if m != rank and ranks[m].doing.issued.get(op.group, 0) < op.seq}
    if op.peer is not None:
        other = ranks[op.peer].doing
        if op.kind == "recv":
            return set() if _number(other.sent, op, rank) >= op.seq else {op.peer}
        # What the other end would take from anyone may be this.
        there = _number(other.received, op, rank) >= op.seq or _number(other.received, op, None) > 0
        return set() if there else {op.peer}
    mine = ranks[rank].doing.received
    others = {member for member in op.members if member != rank}
    on_its_way = any(_number(ranks[m].doing.sent, op, rank) > _number(mine, op, m) for m in others)
    return set() if on_its_way else others


def _number(counts: Iterable[Count], op: Op, peer: int | None) -> int:
    return sum(
        count.number for count in counts if (count.group, count.tag) == (op.group, op.tag) and count.peer == peer
    )


# ── in words ────────────────────────────────────────────────────────────────────────────────────────


def _why(ranks: Mapping[int, Standing], waits: Sequence[Wait]) -> str:
    """One sentence for each call in which ranks wait in vain."""
    calls: dict[tuple[object, ...], list[Wait]] = {}
    for wait in waits:
        op = wait.ops[0]
        own = wait.rank if op.kind != "collective" else None
        calls.setdefault((op.kind, op.group, op.seq, tuple(op.members), op.peer, op.tag, own), []).append(wait)
    # What waits for a rank that is at an end explains what waits for those that wait there.
    ordered = sorted(calls.values(), key=lambda same: all(ranks[m].waits for m in same[0].missing))
    sentences = [_sentence(ranks, same) for same in ordered[:_SENTENCES]]
    if len(ordered) > _SENTENCES:
        sentences.append(f"So it is with {len(ordered) - _SENTENCES} more.")
    return " ".join(sentences)


def _sentence(ranks: Mapping[int, Standing], same: Sequence[Wait]) -> str:
    op = same[0].ops[0]
    who = [wait.rank for wait in same]
    missing = same[0].missing
    if op.kind == "collective":
        waiting = f"{_named(who)} wait{'s' if len(who) == 1 else ''} in it"
    else:
        waiting = f"rank {who[0]} waits in it"
    where: dict[str, list[int]] = {}
    for rank in missing:
        where.setdefault(_where(ranks[rank]), []).append(rank)
    absent = ", and ".join(f"{_named(some)} {_plural(place, some)}" for place, some in where.items())
    alone = "" if op.kind != "recv" or op.peer is not None else "nobody can send it any more: "
    return f"{_call(ranks, op)} can never complete: {waiting}, but {alone}{absent}."


def _call(ranks: Mapping[int, Standing], op: Op) -> str:
    """A call by all that it is known by."""
    if op.kind == "send":
        name = f"send #{op.seq} to rank {op.peer}"
    elif op.kind == "recv":
        name = f"recv #{op.seq} from {'any rank' if op.peer is None else f'rank {op.peer}'}"
    else:
        name = f"{op.name} #{op.seq} of {_group(ranks, op)}"
    if op.kind != "collective" and len(op.members) < len(ranks):
        name += f" in {_group(ranks, op)}"
    tag = f"tag {op.tag}" if op.kind != "collective" and op.tag else ""
    about = "; ".join(part for part in (op.what, tag, op.line) if part)
    return f"{name} ({about})" if about else name


def _group(ranks: Mapping[int, Standing], op: Op) -> str:
    if len(op.members) == len(ranks):
        return "the world"
    return f"the group of {_named(op.members)}"


def _where(standing: Standing) -> str:
    if standing.state == "dead":
        return standing.note or "is dead"
    if standing.waits:
        op = standing.waits[0]
        line = f" ({op.line})" if op.line else ""
        return f"waits in {op.name} #{op.seq}{line}"
    if standing.state == "running":
        return f"is at {standing.doing.line}" if standing.doing.line else "is running"
    note = f" ({standing.note})" if standing.note and standing.state == "failed" else ""
    return f"{_ENDED.get(standing.state, standing.state)}{note}"


def _plural(place: str, ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return place
    for one, many in (("has ", "have "), ("was ", "were "), ("is ", "are "), ("does ", "do "), ("waits ", "wait ")):
        if place.startswith(one):
            return many + place.removeprefix(one)
    return place


def _for_whom(ranks: Mapping[int, Standing], waits: Sequence[Wait]) -> str:
    """Whom the waiting ranks wait for in the end: the free ones at the roots of the chains."""
    roots: set[int] = set()
    seen: set[int] = set()
    queue = [rank for wait in waits for rank in wait.missing]
    while queue:
        rank = queue.pop()
        if rank in seen:
            continue
        seen.add(rank)
        standing = ranks[rank]
        if standing.waits:
            queue += [m for op in standing.waits for m in _missing(ranks, rank, op)]
        else:
            roots.add(rank)
    culprits: dict[str, list[int]] = {}
    for rank in sorted(roots):
        line = ranks[rank].doing.line
        culprits.setdefault(f", at {line}" if line else "", []).append(rank)
    if not culprits:  # all have arrived: it is on its way, or has a limit of its own
        op = waits[0].ops[0]
        return f"waiting in {_call(ranks, op)}"
    return "waiting for " + "; ".join(f"{_named(some)}{place}" for place, some in culprits.items())


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {rank_sets.fold(ranks)}"
