"""What the wait graph finds by counting is what its rules say, read as they are written."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nbcomm.analysis import verdict
from nbcomm.analysis.wait_graph import ENDED, RankReport, WorldReport
from nbcomm.protocol import CollectiveState, MessageCount, PendingCall
from nbcomm.protocol.rank_lists import written

from ..laws import examples, part
from ..notebook.programs import Tape, any_play

Reports = dict[int, RankReport]
TAPES = st.binary(min_size=300, max_size=300).map(Tape)


def any_reports(tape: Tape) -> Reports:
    """What 2 to 9 ranks report; counts and waits need not fit each other, as in looks at different moments."""
    size = 2 + tape.below(8)
    groups = [list(range(size))] + [
        [rank for rank in range(size) if tape.below(2)] or [0] for _ in range(tape.below(4))
    ]
    often, kinds, last = (
        tape.of([2, 4, 16]),
        tape.of([["collective"], ["send", "recv"], ["recv"], None]),
        tape.of([1, 2]),
    )
    anyone, several, oddly = (tape.of([0, 0, 2, 8]) for _ in range(3))
    makes = kinds or ["collective", "send", "recv"]

    def call(rank: int) -> PendingCall:
        number, kind, seq = tape.below(len(groups)), tape.of(makes), 1 + tape.below(last)
        of_anyone = kind == "recv" and tape.below(8) < anyone
        peer = None if kind == "collective" or of_anyone else tape.below(size)
        limited = tape.below(16) < oddly // 4
        return PendingCall(kind, kind, str(number), written(groups[number]), seq, "", "", 0.0, peer, limited=limited)

    def report(rank: int) -> RankReport:
        waits = [call(rank) for _ in range(1 + (tape.below(8) < several))] if tape.below(often) else []
        lanes = [call(rank) for _ in range(tape.of([0, 0, 0, 1, 2]))]
        calls = waits + lanes
        state = "running" if waits and tape.below(8) else tape.of(["running", *ENDED])
        issued = {op.group: op.seq for op in calls if op.kind == "collective" and tape.below(8) >= oddly // 4}
        own = {kind: [op for op in calls if op.kind == kind] for kind in ("send", "recv")}
        sent, received = ([MessageCount(op.group, op.peer, 0, op.seq) for op in ops] for ops in own.values())
        if tape.below(8) < oddly:
            sent.append(MessageCount("0", tape.below(size), 0, 1))
            received.append(MessageCount("0", tape.of([None, *range(size)]), 0, 1))
        threads = tape.below(16) < oddly
        return RankReport(rank, state, "", CollectiveState(issued, sent, received, waits, "", threads, lanes=lanes))

    return {rank: report(rank) for rank in range(size)}


# ── the rules, as they are written: each rank with sets of its own ──────────────────────────────────


def count(reports: Reports, rank: int, which: str, op: PendingCall, peer: int | None) -> int:
    counts = getattr(reports[rank].doing, which)
    return sum(each.number for each in counts if (each.group, each.peer, each.tag) == (op.group, peer, op.tag))


def missing(reports: Reports, rank: int, op: PendingCall) -> set[int]:
    """The ranks that a rank's call needs and that have not arrived."""
    others = set(op.members) - {rank}
    if op.kind == "collective":
        return {other for other in others if reports[other].doing.issued.get(op.group, 0) < op.seq}
    if op.peer is None:
        came = [count(reports, x, "sent", op, rank) > count(reports, rank, "received", op, x) for x in others]
        return set() if any(came) or not count(reports, rank, "received", op, None) else others
    there = count(reports, op.peer, "sent" if op.kind == "recv" else "received", op, rank) >= op.seq
    taken = op.kind == "send" and count(reports, op.peer, "received", op, None) > 0
    return set() if there or taken else {op.peer}


def may_end(op: PendingCall, lacks: set[int], going: set[int]) -> bool:
    enough = bool(lacks & going) if op.kind == "recv" and op.peer is None else lacks <= going
    return op.limited or op.lost or not lacks or enough


def plainly(reports: Reports) -> tuple[dict[int, list[set[int]]], set[int], list[int]]:
    """What each stuck rank's calls miss, which ranks may continue, and which wait forever: found in rounds."""
    stuck = {rank: [(op, missing(reports, rank, op)) for op in report.waits] for rank, report in reports.items()}
    lanes = {rank: [(op, missing(reports, rank, op)) for op in report.lanes] for rank, report in reports.items()}
    going, before = {rank for rank, report in reports.items() if report.free}, -1
    while len(going) > before:
        before = len(going)
        going |= {rank for rank in reports if any(may_end(*call, going) for call in stuck[rank] + lanes[rank])}
    vain = [rank for rank, calls in stuck.items() if calls and not any(may_end(*call, going) for call in calls)]
    return {rank: [lacks for _, lacks in calls] for rank, calls in stuck.items() if calls}, going, vain


def check(reports: Reports) -> int:
    """Compare the two; return how many ranks wait forever."""
    world = WorldReport(reports)
    needs = {rank: [need.missing for need in needs] for rank, needs in world.needs.items()}
    assert (needs, world.going, list(world.vain)) == plainly(reports)
    for calls in (*world.needs.values(), *world.lanes.values()):
        for need in calls:
            assert need.misses == len(need.missing)
            assert need.able(world.going) == len(need.missing & world.going)
            assert need.may_end(world.going) == may_end(need.op, set(need.missing), world.going)
    return len(world.vain)


def test_who_may_continue_is_as_the_rules_say() -> None:
    found = 0

    @examples(500)
    @given(TAPES)
    def law(tape: Tape) -> None:
        nonlocal found
        found += check(any_reports(tape))

    law()
    assert found > 500 * part()  # or the law is empty


def test_in_programs_that_are_played_too() -> None:
    found = 0

    @examples(100)
    @given(TAPES)
    def law(tape: Tape) -> None:
        nonlocal found
        for reports in any_play(tape, anyone=True, lanes=bool(tape.below(2))).history:
            found += check({rank: report.report for rank, report in enumerate(reports)})

    law()
    assert found > 100 * part()


# ── the order in which calls are explained ──────────────────────────────────────────────────────────


def explained(leads: dict[Any, list[Any]]) -> list[list[Any]]:
    """Order calls as `verdict` does; of each, the calls of its missing ranks: None for a rank that has ended."""
    stories: list[list[Any]] = []
    known: set[Any] = {None}
    left = list(leads)
    while left:
        follow = [[knot] for knot in left if not known.isdisjoint(leads[knot])]
        stories += follow or [cycle(left[0], leads)]
        known.update(knot for story in stories for knot in story)
        left = [knot for knot in left if knot not in known]
    return stories


def cycle(start: Any, leads: dict[Any, list[Any]]) -> list[Any]:
    path = [start]
    while not path[-1].need.from_anyone:
        following = leads[path[-1]][0]
        if following in path:
            return path[path.index(following) :]
        path.append(following)
    return path[-1:]


def test_calls_are_explained_each_by_earlier_ones_in_the_order_of_their_ranks() -> None:
    of_cycles = 0

    def compared(world: WorldReport, knots: Any, at: Any) -> Any:
        nonlocal of_cycles
        stories = stories_of(world, knots, at)
        assert stories == explained({knot: [at.get(rank) for rank in verdict._never(world, knot)] for knot in knots})
        of_cycles += len(knots) > 1 and any(len(story) > 1 for story in stories)
        return stories

    stories_of = verdict._stories

    @examples(500)
    @given(TAPES)
    def law(tape: Tape) -> None:
        world = WorldReport(any_reports(tape))
        if world.vain:
            verdict._why(world)

    verdict._stories = compared  # type: ignore[assignment]
    try:
        law()
    finally:
        verdict._stories = stories_of
    assert of_cycles > 20 * part()
