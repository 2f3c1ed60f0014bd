"""The verdict: which ranks wait for which, and which waits can never end. A pure function of all ranks' reports.

`wait_graph` says which ranks may continue, and why snapshots of different moments do not deceive.
"""

from __future__ import annotations

import functools
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..protocol import PendingCall
from ..protocol.rank_lists import read
from ..rank_spec import named, said_of, together
from ..sentences import WIDTH, rows, wrapped
from .wait_graph import ENDED, Absentees, Need, RankReport, WorldReport

_SENTENCES = 3
"""How many calls a verdict describes; the others are only counted."""

_PLACES = 4
"""How many places of missing ranks, and calls of a cycle, one sentence names."""

_LONGEST = 120
"""Characters of a line or an error that are quoted."""

_FIRST = WIDTH - len("HangError: ")
"""Characters of the first line, which stands behind the error's name."""


@dataclass(frozen=True)
class Wait:
    """A rank that is stuck.

    Attributes:
        rank: the rank.
        needs: the calls that it is stuck in; it waits for one of them.
    """

    rank: int
    needs: Sequence[Need]

    @property
    def ops(self) -> list[PendingCall]:
        """The calls."""
        return [need.op for need in self.needs]

    @property
    def missing(self) -> list[int]:
        """The ranks that it needs and that have not arrived, ascending; of a receive from anyone all possible ones."""
        return sorted(set().union(*(need.missing for need in self.needs)))


@dataclass(frozen=True)
class Verdict:
    """What follows from the ranks' reports.

    Attributes:
        waits: every rank that is stuck, in rank order.
        stuck: the ranks whose wait can never end.
        why: what can never complete, with who waits in it and why in rows below; or else, in one line, what the ranks
            wait for; empty if no rank waits.
        remedy: what to do; empty if every wait may end, or if a rank's error or cause of death says it.
        culprits: the ranks whose failure or death is the reason for every wait that can never end; empty if one of
            these has another reason, such as a rank that has finished the cell.
    """

    waits: list[Wait] = field(default_factory=list)
    stuck: list[int] = field(default_factory=list)
    why: str = ""
    remedy: str = ""
    culprits: list[int] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The reason, and what to do; a wait that can never end in several lines."""
        return "\n".join(filter(None, (self.why, self.remedy)))

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
    >>> print(judge(reports).text)
    barrier #1 of the world can never complete:
      rank 0 waits in it, in line 1: barrier()
      rank 1 has finished the cell
    Let rank 1 call it, too: if it is inside an if, take it out.
    Or make a group of those that do (new_group), and call it with group=.
    """
    if not any(report.waits for report in reports.values()):
        return Verdict()
    world = WorldReport(reports)
    waits = [Wait(rank, needs) for rank, needs in world.needs.items()]
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
    world = WorldReport(reports)
    running = [(rank, report.doing.beside) for rank, report in sorted(reports.items()) if report.state == "running"]
    needs = [need for rank, beside in running for op in beside if (need := world.need(rank, op)).misses]
    left = len(needs) - _SENTENCES
    more = [f"and {left} more thread{'s' if left > 1 else ''}"] if left > 0 else []
    return "; ".join([_of_thread(world, need) for need in needs[:_SENTENCES]] + more)


def _of_thread(world: WorldReport, need: Need) -> str:
    vain = "" if need.may_end(world.going) else ", so it waits forever: press ■ to end the cell"
    places = _listed(_places(world, sorted(need.missing), need.op))
    who = f"a thread of rank {need.rank} ({need.op.thread})"
    return f"waiting for {who}, which waits in {_call(world, need.op)}: {places}{vain}"


# ── why a wait can never end ────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False)
class _Knot:
    """A call that can never complete, the ranks that wait in it, and how many other calls would also end their wait."""

    need: Need
    ranks: list[int]
    others: int


def _why(world: WorldReport) -> tuple[str, str, list[int]]:
    """Write some lines for each call that can never complete and each cycle of such calls; and remedy and culprits."""
    knots: dict[object, _Knot] = {}
    at: dict[int, _Knot] = {}
    for rank, (need, *others) in world.vain.items():
        op = need.op
        key = (op.group, op.seq, op.ranks) if op.kind == "collective" else rank
        at[rank] = knots.setdefault(key, _Knot(need, [], len(others)))
        at[rank].ranks.append(rank)
    stories = _stories(world, list(knots.values()), at)
    sentences = [
        _sentence(world, story[0]) if len(story) == 1 else _around(world, story) for story in stories[:_SENTENCES]
    ]
    more = sum(len(story) for story in stories[_SENTENCES:])
    if more:
        sentences.append(f"And {more} more call{'s' if more > 1 else ''} can never complete.")
    return "\n".join(sentences), wrapped(_remedy(world, stories[0])), _guilty(world, stories)


def _guilty(world: WorldReport, stories: Iterable[Sequence[_Knot]]) -> list[int]:
    """Return the ranks whose failure or death explains all these calls; none if one call has another reason."""
    guilty: set[int] = set()
    explained: set[int] = set()
    for knot, *others in stories:
        missing = knot.need.missing if not others else set[int]()
        failed = {rank for rank in missing if world.ranks[rank].state in _BROKEN}
        # One that has finished would be reason enough; for a receive from any source it is none, as another may send.
        absent = not knot.need.from_anyone and any(world.ranks[rank].state in ("finished", "idle") for rank in missing)
        if absent or not (failed or explained.intersection(missing)):
            return []
        guilty |= failed
        explained.update(knot.ranks)
    return sorted(guilty)


_BROKEN = ("failed", "interrupted", "dead")


def _stories(world: WorldReport, knots: Sequence[_Knot], at: Mapping[int, _Knot]) -> list[list[_Knot]]:
    """Order the calls so that each is explained by earlier ones; keep a cycle together.

    A call is explained by a missing rank that has ended its part, which needs no reason, or that waits in a call that
    is explained. Each round takes all calls that the last one explains, and if there are none, a cycle.

    Args:
        world: all ranks.
        knots: the calls.
        at: for each rank that waits forever, its call.
    """
    places = {knot: place for place, knot in enumerate(knots)}
    waiting: dict[Absentees, list[_Knot]] = {}
    for knot in knots:
        waiting.setdefault(knot.need.absentees, []).append(knot)
    lacked: dict[int, list[Absentees]] = {}
    for absentees in waiting:
        for rank in absentees.ranks - world.going:
            lacked.setdefault(rank, []).append(absentees)
    stories: list[list[_Knot]] = []
    left = dict.fromkeys(knots)
    ended = [rank for rank in lacked if rank not in at or world.ranks[rank].doing.failed]
    while left:
        follow = {knot for rank in ended for absentees in lacked.pop(rank, ()) for knot in waiting.pop(absentees, ())}
        told = [[knot] for knot in sorted(follow & left.keys(), key=places.__getitem__)]
        told = told or [_cycle(world, next(iter(left)), at)]
        stories += told
        ended = []
        for knot in (knot for story in told for knot in story):
            ended += knot.ranks
            del left[knot]
    return stories


def _cycle(world: WorldReport, start: _Knot, at: Mapping[int, _Knot]) -> list[_Knot]:
    """Follow the calls until they form a cycle; return a receive that accepts any source by itself."""
    path = {start: 0}
    knot = start
    while not knot.need.from_anyone:
        knot = at[min(knot.need.missing - world.going)]
        if knot in path:
            return list(path)[path[knot] :]
        path[knot] = len(path)
    return [knot]


def _never(world: WorldReport, knot: _Knot) -> list[int]:
    """Return the missing ranks that can never arrive; first those whose part has ended, which needs no other reason."""
    return sorted(knot.need.missing - world.going, key=lambda rank: (rank in world.vain, rank))


def _sentence(world: WorldReport, knot: _Knot) -> str:
    never = _never(world, knot)
    op = knot.need.op
    places = _places(world, never, op) + _places(world, sorted(knot.need.missing.difference(never)), op)
    nobody = ["no rank can send it any more:"] if knot.need.from_anyone else []
    return _told(world, knot, [*nobody, *places])


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
    return _told(world, cycle[0], steps)


def _told(world: WorldReport, knot: _Knot, why: Sequence[str]) -> str:
    """Write what can never complete, then in a row each who waits in it, and why."""
    op = knot.need.op
    about = "; ".join(filter(None, (_short(op.what), _tag(op))))
    head = f"{_name(world, op)}{f' ({about})' if about else ''} can never complete:"
    calls = ""
    if knot.others:
        which = "another call" if knot.others == 1 else f"one of {knot.others} other calls"
        calls = f" or in {which} that cannot complete either"
    ops = [world.vain[rank][0].op for rank in knot.ranks]
    begun_in = "begun in" if op.number else "begun there in"
    alike = together(knot.ranks, [(op.line, op.begun) for op in ops])
    waits = [
        said_of(some, f"waits in it{calls}")
        + "".join(f", {word} {_short(line)}" for word, line in ((begun_in, begun), ("in", line)) if line)
        for (line, begun), some in alike.items()
    ]
    if len(waits) > _PLACES:
        more = sum(len(some) for some in list(alike.values())[_PLACES:])
        waits[_PLACES:] = [f"{more} more rank{'s wait' if more > 1 else ' waits'} in it"]
    return "\n".join([*textwrap.wrap(head, _FIRST, subsequent_indent="    "), *rows([*waits, *why])])


_REMEDIES = {
    frozenset({"collective"}): "Let all ranks call the same collectives in the same order.",
    frozenset({"recv"}): "Let one of them send before it receives, or use sendrecv.",
    frozenset({"send"}): "Let one of them receive before it sends, or use sendrecv or isend.",
}
"""The remedies for cycles, by the kinds of their calls; the last also for several kinds."""


def _remedy(world: WorldReport, story: Sequence[_Knot]) -> str:
    """Return the remedy for the first story; empty if a rank's error or cause of death says it."""
    op = story[0].need.op
    if len(story) > 1:
        return _REMEDIES.get(frozenset(knot.need.op.kind for knot in story), _REMEDIES[frozenset({"send"})])
    never = _never(world, story[0])
    states = {world.ranks[rank].state for rank in never}
    who = named(never)
    if not states <= {"finished", "idle"} or any(world.ranks[rank].failed_in(op) for rank in never):
        return ""
    if op.kind != "collective":
        sender = who if op.peer is not None else "one of them"
        return f"Let {who} receive it." if op.kind == "send" else f"Let {sender} send to {named(story[0].ranks)}."
    if op.name in ("new_group", "split_group"):
        return f"Every rank of the world must call {op.name}, whether or not it is in the group."
    if states == {"idle"}:
        return f"Let {who} run the cell and call it, too.\n{_APART}"
    out = "take it out of the if." if _IF.search(op.line) else "if it is inside an if, take it out."
    return f"Let {who} call it, too: {out}\n{_APART}"


_IF = re.compile(r": (if|elif|else)\b|\bif\b.*\brank\b")
"""In the line of a call: the call is inside an if, or there is a condition on the rank."""

_APART = "Or make a group of those that do (new_group), and call it with group=."


# ── what a wait that may still end needs ────────────────────────────────────────────────────────────


def _for_whom(world: WorldReport) -> str:
    """Name the free ranks at the ends of the chains of waits, and the waits that end by themselves."""
    mains = [need for needs in world.needs.values() for need in needs]
    lanes = [need for needs in world.lanes.values() for need in needs]
    free = world.going - world.needs.keys()
    alone = next((need for need in mains if need.by_itself), None)
    if alone is not None and alone.op.lost:
        return f"waiting for the reason why {_call(world, alone.op)} lost a connection"
    if whom := _ends(world, mains, free):
        limit = f"; {_call(world, alone.op)} has its own timeout" if alone else ""
        return f"waiting for {whom}{limit}"
    if alone is not None:
        places = _listed(_places(world, sorted(alone.missing), alone.op))
        return f"waiting in {_call(world, alone.op)} until its timeout" + (f": {places}" if places else "")
    arrived = [need for need in mains if not need.misses]
    if not arrived:
        # Who is waited for waits, too. It may come by what its lanes wait for, or by a thread.
        threads = {rank for rank in world.needs if world.ranks[rank].free}
        if whom := _ends(world, [*mains, *lanes], free) or _ends(world, [*mains, *lanes], threads):
            return f"waiting for {whom}"
        arrived = [need for need in lanes if not need.misses]
    return f"waiting in {_call(world, (arrived or mains)[0].op)}{', where all ranks have arrived' if arrived else ''}"


def _ends(world: WorldReport, needs: Sequence[Need], among: set[int]) -> str:
    """Name those among some ranks on which waits finally depend; empty if there are none."""
    surely = _roots(world, needs, among, certain=True)
    perhaps = sorted(_roots(world, needs, among, certain=False) - surely)
    parts = [_culprits(world, sorted(surely))] if surely else []
    if perhaps:
        parts.append(("one of these: " if len(perhaps) > 1 else "") + _culprits(world, perhaps))
    return "; and for ".join(parts)


def _roots(world: WorldReport, needs: Sequence[Need], among: set[int], *, certain: bool) -> set[int]:
    """Return those among some ranks on which waits depend; ``certain``: only those without an alternative."""
    going = world.going
    awaited = {
        need.absentees
        for need in needs
        if need.may_end(going) and (not certain or need.able(going) == 1 or not need.from_anyone)
    }
    return among & set().union(*(absentees.ranks for absentees in awaited))


def _culprits(world: WorldReport, ranks: Sequence[int]) -> str:
    """Name free ranks and their lines: ``rank 2, at line 3: time.sleep(60); ranks 4-5``."""
    places: dict[tuple[str, str], list[int]] = {}
    for rank in ranks:
        report = world.ranks[rank]
        line = _short(report.doing.line)
        place = ("", f", at {line}" if line else "")
        if report.state in ENDED or report.waits:
            place = ("a thread of ", f", which {_where(world, rank)}")
        places.setdefault(place, []).append(rank)
    texts = [f"{before}{named(some)}{after}" for (before, after), some in places.items()]
    more = sum(len(some) for some in list(places.values())[_PLACES:])
    return "; ".join(texts[:_PLACES] + ([f"{more} more rank{'s' if more > 1 else ''}"] if more else []))


# ── words ───────────────────────────────────────────────────────────────────────────────────────────


def _call(world: WorldReport, op: PendingCall) -> str:
    """Describe a call, and where it is made: ``all_reduce #3 of the world (line 2: all_reduce(x))``."""
    begun = f"begun in {_short(op.begun)}" if op.begun else ""
    about = "; ".join(filter(None, (_tag(op), begun, _short(op.line))))
    name = _name(world, op)
    return f"{name} ({about})" if about else name


def _tag(op: PendingCall) -> str:
    return f"tag {op.tag}" if op.kind != "collective" and op.tag else ""


def _name(world: WorldReport, op: PendingCall) -> str:
    """Name a call: ``all_reduce #3 of the world``, ``send #1 to rank 2``."""
    small = len(op.members) < world.size
    group = f"the group of {_named(op.ranks)}" if small else "the world"
    if op.kind == "collective":
        return f"{op.called(op.name)} of {group}"
    peer = "any rank" if op.peer is None else f"rank {op.peer}"
    own = op.name if op.name in {"isend", "irecv"} else op.kind
    name = f"{op.called(own)} {'to' if op.kind == 'send' else 'from'} {peer}"
    name += f" within {op.name}" if op.name not in {"", op.kind, own} else ""
    return name + (f" in {group}" if small else "")


@functools.lru_cache
def _named(ranks: str) -> str:
    """Name the ranks of a text, once for all that wait in calls of the same group."""
    return named(read(ranks))


def _places(world: WorldReport, ranks: Sequence[int], op: PendingCall) -> list[str]:
    """Say where ranks are that a call lacks, those at one place together: ``ranks 1-2 have finished the cell``."""
    alike = together(ranks, [_where(world, rank, op) for rank in ranks])
    places = [said_of(some, place) for place, some in alike.items()]
    more = sum(len(some) for some in list(alike.values())[_PLACES:])
    rest = [f"{more} more rank{'s have' if more > 1 else ' has'} not arrived"] if more else []
    return places[:_PLACES] + rest


def _where(world: WorldReport, rank: int, op: PendingCall | None = None) -> str:
    """Say where a missing rank is, as the end of a sentence about one rank."""
    report = world.ranks[rank]
    if op is not None and report.failed_in(op) and not (report.state == "failed" and report.note):
        return "has failed in it"
    if report.waits:
        return f"waits in {_call(world, report.waits[0])}"
    if report.state == "dead" and report.note:
        return _short(report.note)
    if report.state in ENDED:
        note = f" ({_short(report.note)})" if report.note and report.state == "failed" else ""
        return ENDED[report.state] + note
    return f"is still at {_short(report.doing.line)}" if report.doing.line else "is still running"


def _listed(places: Sequence[str]) -> str:
    return ", and ".join([", ".join(places[:-1]), places[-1]] if len(places) > 1 else places)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
