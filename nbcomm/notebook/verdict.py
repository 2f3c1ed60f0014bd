"""Judges who waits for whom, and whether in vain: for collectives only, so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..messages import Doing, Op


@dataclass(frozen=True)
class Standing:
    """What is known of one rank."""

    rank: int
    state: str
    note: str = ""
    doing: Doing = field(default_factory=Doing)


@dataclass(frozen=True)
class Wait:
    """A rank that waits."""

    rank: int
    ops: list[Op]


@dataclass(frozen=True)
class Verdict:
    """Who waits, and who in vain."""

    waits: list[Wait] = field(default_factory=list)
    stuck: list[int] = field(default_factory=list)
    text: str = ""

    @property
    def hopeless(self) -> bool:
        """Whether a wait can never end."""
        return bool(self.stuck)


def judge(standings: Mapping[int, Standing]) -> Verdict:
    """Judge what all ranks report."""
    alive = {r for r, s in standings.items() if s.state == "running" and not s.doing.waits}
    waits = [Wait(r, s.doing.waits) for r, s in standings.items() if s.doing.waits]
    while True:
        more = {
            w.rank
            for w in waits
            if w.rank not in alive
            and any(
                op.kind != "collective"
                or all(m in alive or standings[m].doing.issued.get(op.group, 0) >= op.seq for m in op.members)
                for op in w.ops
            )
        }
        if not more:
            break
        alive |= more
    stuck = [w.rank for w in waits if w.rank not in alive]
    text = "; ".join(f"rank {w.rank} in {w.ops[0].name} #{w.ops[0].seq} ({w.ops[0].line})" for w in waits)
    return Verdict(waits, stuck, text)
