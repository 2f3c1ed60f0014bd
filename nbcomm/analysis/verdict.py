"""The verdict: which ranks wait for which, and which waits can never end. A pure function of all ranks' reports.

`wait_graph` says which ranks may continue, and why snapshots of different moments do not deceive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..protocol import PendingCall
from ..rank_spec import named, together
from .wait_graph import ENDED, Need, RankReport, WorldReport

_SENTENCES = 3
"""How many calls a verdict describes; the others are only counted."""

_PLACES = 4
"""How many places of missing ranks, and calls of a cycle, one sentence names."""

_LONGEST = 120
"""Characters of a line or an error that are quoted."""


@dataclass(frozen=True)
class Wait:
    """A rank that is stuck.

    Attributes:
        rank: the rank.
        ops: it waits for one of these calls.
        missing: the ranks that it needs and that have not arrived, ascending; of a receive that accepts any source,
            all possible sources.
    """

    rank: int
    ops: Sequence[PendingCall]
    missing: list[int]


@dataclass(frozen=True)
class Verdict:
    """What follows from the ranks' reports.

    Attributes:
        waits: every rank that is stuck, in rank order.
        stuck: the ranks whose wait can never end.
        why: sentences that say why waits can never end, or else what the ranks wait for; empty if no rank waits.
        remedy: what to do; empty if every wait may end, or if a rank's error or cause of death says it.
    """

    waits: list[Wait] = field(default_factory=list)
    stuck: list[int] = field(default_factory=list)
    why: str = ""
    remedy: str = ""

    @property
    def text(self) -> str:
        """The reason, and what to do."""
        return " ".join(filter(None, (self.why, self.remedy)))

    @property
    def hopeless(self) -> bool:
        """Whether a wait can never end."""
        return bool(self.stuck)


def judge(reports: Mapping[int, RankReport]) -> Verdict:
    """Judge the reports of all ranks of a world.

    Args:
        reports: every rank of the world, by rank, all in one generation.

    >>> from nbcomm.protocol import CollectiveState
    >>> barrier = PendingCall("collective", "barrier", "0", "0,1", 1, "", "line 1: barrier()", 0.0)
    >>> reports = {
    ...     0: RankReport(0, "running", doing=CollectiveState({"0": 1}, waits=[barrier])),
    ...     1: RankReport(1, "finished"),
    ... }
    >>> print(judge(reports).text)  # doctest: +ELLIPSIS
    barrier #1 of the world (line 1: barrier()) can never complete: rank 0 waits in it, but rank 1 has finished ...
    """
    if not any(report.waits for report in reports.values()):
        return Verdict()
    world = WorldReport(reports)
    waits = [
        Wait(rank, [need.op for need in needs], sorted(set().union(*(need.missing for need in needs))))
        for rank, needs in world.needs.items()
    ]
    if not world.vain:
        return Verdict(waits, why=_for_whom(world))
    return Verdict(waits, list(world.vain), *_why(world))


def of_threads(reports: Mapping[int, RankReport]) -> str:
    """Say which threads wait for ranks while their rank's main thread waits for a thread; often empty.

    This is no verdict: the main thread's wait may have a timeout, and it may do anything after that.

    Args:
        reports: as in `judge`.
    """
    if not any(report.doing.beside for report in reports.values()):
        return ""
    world, parts = WorldReport(reports), []
    for rank, report in sorted(reports.items()):
        for op in report.doing.beside if report.state == "running" else ():
            need = Need(op, world.missing(rank, op))
            if need.missing:
                vain = "" if need.may_end(world.going) else ", so it waits forever: press ■ to end the cell"
                places = _listed(_places(world, sorted(need.missing)))
                who = f"a thread of rank {rank} ({op.thread})"
                parts.append(f"waiting for {who}, which waits in {_call(world, op)}: {places}{vain}")
    left = len(parts) - _SENTENCES
    more = [f"and {left} more thread{'s' if left > 1 else ''}"] if left > 0 else []
    return "; ".join(parts[:_SENTENCES] + more)


# ── why a wait can never end ────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False)
class _Knot:
    """A call that can never complete, the ranks that wait in it, and how many other calls would also end their wait."""

    need: Need
    ranks: list[int]
    others: int


def _why(world: WorldReport) -> tuple[str, str]:
    """Write a sentence for each call that can never complete and each cycle of such calls; and the remedy."""
    knots: dict[object, _Knot] = {}
    at: dict[int, _Knot] = {}
    for rank, (need, *others) in world.vain.items():
        op = need.op
        key = (op.group, op.seq, tuple(op.members)) if op.kind == "collective" else rank
        at[rank] = knots.setdefault(key, _Knot(need, [], len(others)))
        at[rank].ranks.append(rank)
    stories = _stories({knot: [at.get(rank) for rank in _never(world, knot)] for knot in knots.values()})
    sentences = [
        _sentence(world, story[0]) if len(story) == 1 else _around(world, story) for story in stories[:_SENTENCES]
    ]
    more = sum(len(story) for story in stories[_SENTENCES:])
    if more:
        sentences.append(f"And {more} more call{'s' if more > 1 else ''} can never complete.")
    return " ".join(sentences), _remedy(world, stories[0])


def _stories(leads: Mapping[_Knot, Sequence[_Knot | None]]) -> list[list[_Knot]]:
    """Order the calls so that each is explained by earlier ones; keep a cycle together.

    Args:
        leads: for each call, the calls in which its missing ranks wait; None for a rank that has ended its part, which
            needs no reason.
    """
    stories: list[list[_Knot]] = []
    explained: set[_Knot | None] = {None}
    left = list(leads)
    while left:
        follow = [[knot] for knot in left if not explained.isdisjoint(leads[knot])]
        stories += follow or [_cycle(left[0], leads)]
        explained.update(knot for story in stories for knot in story)
        left = [knot for knot in left if knot not in explained]
    return stories


def _cycle(start: _Knot, leads: Mapping[_Knot, Sequence[_Knot | None]]) -> list[_Knot]:
    """Follow the calls until they form a cycle; return a receive that accepts any source by itself."""
    path = [start]
    while not path[-1].need.from_anyone:
        following = next(knot for knot in leads[path[-1]] if knot is not None)
        if following in path:
            return path[path.index(following) :]
        path.append(following)
    return path[-1:]


def _never(world: WorldReport, knot: _Knot) -> list[int]:
    """Return the missing ranks that can never arrive; first those whose part has ended, which needs no other reason."""
    return sorted(knot.need.missing - world.going, key=lambda rank: (rank in world.vain, rank))


def _sentence(world: WorldReport, knot: _Knot) -> str:
    never = _never(world, knot)
    places = _places(world, never) + _places(world, sorted(knot.need.missing.difference(never)))
    nobody = "no rank can send it any more: " if knot.need.from_anyone else ""
    return f"{_in_vain(world, knot)}, but {nobody}{_listed(places)}."


def _around(world: WorldReport, cycle: Sequence[_Knot]) -> str:
    """Describe a cycle: each call needs a rank that waits in the next call, and the last needs one in the first."""
    needed = [
        min(knot.need.missing.intersection(after.ranks))
        for knot, after in zip(cycle, [*cycle[1:], cycle[0]], strict=True)
    ]
    steps = []
    for knot, rank, needs in zip(cycle[1:], needed, needed[1:], strict=False):
        others = [other for other in knot.ranks if other != rank]
        also = f", as {'does' if len(others) == 1 else 'do'} {named(others)}," if others else ","
        steps.append(f"rank {rank} waits in {_call(world, knot.need.op)}{also} which needs rank {needs}")
    if len(steps) > _PLACES:
        steps[2:] = [f"and so on through {named(needed[2:-1])}, back to rank {needed[-1]}"]
    return f"{_in_vain(world, cycle[0])}, but {'; '.join(steps)}."


def _in_vain(world: WorldReport, knot: _Knot) -> str:
    waiting = f"{named(knot.ranks)} wait{'s' if len(knot.ranks) == 1 else ''} in it"
    if knot.others:
        calls = "another call" if knot.others == 1 else f"one of {knot.others} other calls"
        waiting += f" or in {calls} that cannot complete either"
    return f"{_call(world, knot.need.op, details=True)} can never complete: {waiting}"


def _remedy(world: WorldReport, story: Sequence[_Knot]) -> str:
    """Return the remedy for the first story; empty if a rank's error or cause of death says it."""
    op = story[0].need.op
    if len(story) > 1:
        if all(knot.need.op.kind == "collective" for knot in story):
            return "Let all ranks call the same collectives in the same order."
        return "Let one of them receive before it sends, or use sendrecv or isend."
    never = _never(world, story[0])
    states = {world.ranks[rank].state for rank in never}
    who = named(never)
    if not states <= {"finished", "idle"}:
        return ""
    if op.kind != "collective":
        sender = who if op.peer is not None else "one of them"
        return f"Let {who} receive it." if op.kind == "send" else f"Let {sender} send to {named(story[0].ranks)}."
    if op.name == "new_group":
        return "Every rank of the world must call new_group, whether or not it is in the group."
    where = "run the cell and call" if states == {"idle"} else "call"
    return f"Let {who} {where} it, too; or make a group of those that do (new_group), and call it with group=."


# ── what a wait that may still end needs ────────────────────────────────────────────────────────────


def _for_whom(world: WorldReport) -> str:
    """Name the free ranks at the ends of the chains of waits, and the waits that end by themselves."""
    everybody = [need for needs in world.needs.values() for need in needs]
    alone = next((need for need in everybody if need.by_itself), None)
    if alone is not None and alone.op.lost:
        return f"waiting for the reason why {_call(world, alone.op)} lost a connection"
    surely = _roots(world, certain=True)
    perhaps = [rank for rank in _roots(world, certain=False) if rank not in surely]
    parts = [_culprits(world, surely)] if surely else []
    if perhaps:
        parts.append(("one of these: " if len(perhaps) > 1 else "") + _culprits(world, perhaps))
    if parts:
        limit = f"; {_call(world, alone.op)} has its own timeout" if alone else ""
        return f"waiting for {'; and for '.join(parts)}{limit}"
    if alone is not None:
        places = _listed(_places(world, sorted(alone.missing)))
        return f"waiting in {_call(world, alone.op)} until its timeout" + (f": {places}" if places else "")
    return f"waiting in {_call(world, everybody[0].op)}, where all ranks have arrived"


def _roots(world: WorldReport, *, certain: bool) -> list[int]:
    """Return the free ranks on which the waits finally depend; ``certain``: only those without an alternative."""
    roots: set[int] = set()
    seen: set[int] = set()
    queue = list(world.needs)
    while queue:
        rank = queue.pop()
        if rank in seen:
            continue
        seen.add(rank)
        if rank not in world.needs:
            roots.add(rank)
        for need in world.needs.get(rank, ()):
            able = need.missing & world.going
            if need.may_end(world.going) and (not certain or len(able) == 1 or not need.from_anyone):
                queue.extend(able)
    return sorted(roots)


def _culprits(world: WorldReport, ranks: Sequence[int]) -> str:
    """Name free ranks and their lines: ``rank 2, at line 3: time.sleep(60); ranks 4-5``."""
    places: dict[tuple[str, str], list[int]] = {}
    for rank in ranks:
        report = world.ranks[rank]
        line = _short(report.doing.line)
        place = ("", f", at {line}" if line else "")
        if report.state in ENDED:
            place = ("a thread of ", f", which {_where(world, rank)}")
        places.setdefault(place, []).append(rank)
    texts = [f"{before}{named(some)}{after}" for (before, after), some in places.items()]
    more = sum(len(some) for some in list(places.values())[_PLACES:])
    return "; ".join(texts[:_PLACES] + ([f"{more} more rank{'s' if more > 1 else ''}"] if more else []))


# ── words ───────────────────────────────────────────────────────────────────────────────────────────


def _call(world: WorldReport, op: PendingCall, *, details: bool = False) -> str:
    """Describe a call in full: ``all_reduce #3 of the world (float32 (4,), sum; line 2: all_reduce(x))``."""
    small = len(op.members) < world.size
    group = f"the group of {named(op.members)}" if small else "the world"
    if op.kind == "collective":
        name = f"{op.name} #{op.seq} of {group}"
    else:
        peer = "any rank" if op.peer is None else f"rank {op.peer}"
        own = op.name if op.name in {"isend", "irecv"} else op.kind
        name = f"{own} #{op.seq} {'to' if op.kind == 'send' else 'from'} {peer}"
        name += f" within {op.name}" if op.name not in {"", op.kind, own} else ""
        name += f" in {group}" if small else ""
    tag = f"tag {op.tag}" if op.kind != "collective" and op.tag else ""
    begun = f"begun in {_short(op.begun)}" if op.begun else ""
    about = "; ".join(part for part in (_short(op.what) if details else "", tag, begun, _short(op.line)) if part)
    return f"{name} ({about})" if about else name


def _places(world: WorldReport, ranks: Sequence[int]) -> list[str]:
    """Say where ranks are, those at the same place together: ``ranks 1-2 have finished the cell``."""
    alike = together(ranks, [_where(world, rank) for rank in ranks])
    places = [f"{named(some)} {plural(place) if len(some) > 1 else place}" for place, some in alike.items()]
    more = sum(len(some) for some in list(alike.values())[_PLACES:])
    rest = [f"{more} more rank{'s have' if more > 1 else ' has'} not arrived"] if more else []
    return places[:_PLACES] + rest


def _where(world: WorldReport, rank: int) -> str:
    """Say where a missing rank is, as the end of a sentence about one rank."""
    report = world.ranks[rank]
    if report.waits:
        return f"waits in {_call(world, report.waits[0])}"
    if report.state == "dead" and report.note:
        return _short(report.note)
    if report.state in ENDED:
        note = f" ({_short(report.note)})" if report.note and report.state == "failed" else ""
        return ENDED[report.state] + note
    return f"is still at {_short(report.doing.line)}" if report.doing.line else "is still running"


def plural(place: str) -> str:
    """Turn the end of a sentence about one rank into the plural: ``was killed`` → ``were killed``."""
    verb, _, rest = place.partition(" ")
    verb = {"has": "have", "was": "were", "is": "are", "does": "do", "waits": "wait"}.get(verb, verb)
    return f"{verb} {rest}" if rest else verb


def _listed(places: Sequence[str]) -> str:
    return ", and ".join([", ".join(places[:-1]), places[-1]] if len(places) > 1 else places)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
