"""Who waits for whom, and whether in vain: situations that are written down, and programs that are played."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbcomm.analysis.verdict import judge, of_threads
from nbcomm.analysis.wait_graph import RankReport
from nbcomm.protocol import CollectiveState, MessageCount, PendingCall
from nbcomm.protocol.rank_lists import written
from nbcomm.sentences import WIDTH

from ..growth import lines_run
from ..laws import examples, part
from ..notebook.programs import Play, Tape, any_play

# ── situations ──────────────────────────────────────────────────────────────────────────────────────

Rank = Callable[[int, int], RankReport]
"""Makes the report of a rank in a world of some size."""


def coll(seq: int, *members: int, name: str = "all_reduce", **more: Any) -> PendingCall:
    """A collective; without members, of the world."""
    group = "new_group" if name == "new_group" else str(members or "world")
    line = more.pop("line", f"line 2: {name}(x)")
    return PendingCall("collective", name, group, written(members), seq, more.pop("what", ""), line, 0.0, **more)


def send(seq: int, peer: int, *members: int, kind: str = "send", **more: Any) -> PendingCall:
    line = more.pop("line", f"line 3: {kind}")
    name = more.pop("name", kind)
    return PendingCall(kind, name, str(members or "world"), written(members), seq, "", line, 0.0, peer, **more)


def recv(seq: int, peer: int | None, *members: int, **more: Any) -> PendingCall:
    return send(seq, peer, *members, kind="recv", **more)  # type: ignore[arg-type]  # a send has a peer, a receive may not


def at(
    state: str,
    note: str = "",
    *,
    waits: Iterable[PendingCall] = (),
    did: Iterable[PendingCall] = (),
    lanes: Iterable[PendingCall] = (),
    **doing: Any,
) -> Rank:
    """A rank; what it waits for it has issued, and so it has what it did before."""

    def make(rank: int, size: int) -> RankReport:
        calls = [*waits, *lanes, *did]
        issued: dict[str, int] = {}
        counts: dict[str, dict[tuple[str, int | None, int], int]] = {"send": {}, "recv": {}}
        for op in calls:
            if op.kind == "collective":
                issued[op.group] = max(op.seq, issued.get(op.group, 0))
            else:
                key = op.group, op.peer, op.tag
                counts[op.kind][key] = max(op.seq, counts[op.kind].get(key, 0))
        sent, received = ([MessageCount(*key, number) for key, number in some.items()] for some in counts.values())
        ops, beside = (
            [msgspec.structs.replace(op, ranks=op.ranks or written(range(size))) for op in some]
            for some in (waits, lanes)
        )
        return RankReport(rank, state, note, CollectiveState(issued, sent, received, ops, lanes=beside, **doing))

    return make


def stuck(
    *ops: PendingCall, did: Iterable[PendingCall] = (), threads: int = 0, lanes: Iterable[PendingCall] = ()
) -> Rank:
    return at("running", waits=ops, did=did, threads=threads, line=ops[0].line, lanes=lanes)


def busy(line: str = "line 3: time.sleep(60)", did: Iterable[PendingCall] = ()) -> Rank:
    return at("running", line=line, did=did)


def finished(*did: PendingCall, threads: int = 0, lanes: Iterable[PendingCall] = ()) -> Rank:
    return at("finished", did=did, threads=threads, lanes=lanes)


def failed(note: str = "ValueError: boom") -> Rank:
    return at("failed", note)


def dead(note: str = "was killed by SIGKILL", **doing: Any) -> Rank:
    return at("dead", note, **doing)


def idle(*did: PendingCall) -> Rank:
    return at("idle", did=did)


def world(*ranks: Rank) -> dict[int, RankReport]:
    return {rank: make(rank, len(ranks)) for rank, make in enumerate(ranks)}


A, B, C = coll(1, 0, 1, name="a"), coll(1, 1, 2, name="b"), coll(1, 0, 2, name="c")
SUM = coll(3, what="float32 (4,), sum")

HOPELESS = {
    "one has finished": (
        [stuck(SUM), finished(coll(2)), stuck(SUM), stuck(SUM)],
        [0, 2, 3],
        (
            "all_reduce #3 of the world (float32 (4,), sum) can never complete:\n"
            "  ranks 0,2-3 wait in it, in line 2: all_reduce(x)\n"
            "  rank 1 has finished the cell"
        ),
    ),
    "one failed": (
        [failed(), stuck(SUM)],
        [1],
        (
            "all_reduce #3 of the world (float32 (4,), sum) can never complete:\n"
            "  rank 1 waits in it, in line 2: all_reduce(x)\n"
            "  rank 0 failed (ValueError: boom)"
        ),
    ),
    "failed without a word": (
        [failed(""), stuck(SUM)],
        [1],
        (
            "all_reduce #3 of the world (float32 (4,), sum) can never complete:\n"
            "  rank 1 waits in it, in line 2: all_reduce(x)\n"
            "  rank 0 failed"
        ),
    ),
    "one was interrupted": (
        [at("interrupted", "KeyboardInterrupt"), stuck(SUM)],
        [1],
        (
            "all_reduce #3 of the world (float32 (4,), sum) can never complete:\n"
            "  rank 1 waits in it, in line 2: all_reduce(x)\n"
            "  rank 0 was interrupted"
        ),
    ),
    "it has failed on one, which went on": (
        [at("finished", did=[SUM], failed={"world": [2, 3]}), stuck(SUM)],
        [1],
        (
            "all_reduce #3 of the world (float32 (4,), sum) can never complete:\n"
            "  rank 1 waits in it, in line 2: all_reduce(x)\n"
            "  rank 0 has failed in it"
        ),
    ),
    "it has failed on one, which waits in another": (
        [
            at("running", waits=[coll(4)], failed={"world": [3]}),
            stuck(SUM),
            stuck(SUM),
        ],
        [0, 1, 2],
        (
            "all_reduce #3 of the world (float32 (4,), sum) can never complete:\n"
            "  ranks 1-2 wait in it, in line 2: all_reduce(x)\n"
            "  rank 0 has failed in it\n"
            "all_reduce #4 of the world can never complete:\n"
            "  rank 0 waits in it, in line 2: all_reduce(x)\n"
            "  ranks 1-2 wait in all_reduce #3 of the world (line 2: all_reduce(x))"
        ),
    ),
    "one is dead": (
        [stuck(SUM), dead()],
        [0],
        (
            "all_reduce #3 of the world (float32 (4,), sum) can never complete:\n"
            "  rank 0 waits in it, in line 2: all_reduce(x)\n"
            "  rank 1 was killed by SIGKILL"
        ),
    ),
    "several are dead": (
        [stuck(SUM), dead(), dead()],
        [0],
        (
            "all_reduce #3 of the world (float32 (4,), sum) can never complete:\n"
            "  rank 0 waits in it, in line 2: all_reduce(x)\n"
            "  ranks 1-2 were killed by SIGKILL"
        ),
    ),
    "dead, nobody knows how": (
        [stuck(SUM), dead("")],
        [0],
        (
            "all_reduce #3 of the world (float32 (4,), sum) can never complete:\n"
            "  rank 0 waits in it, in line 2: all_reduce(x)\n"
            "  rank 1 is dead"
        ),
    ),
    "dead, with threads that are dead too": (
        [stuck(SUM), at("dead", "left", threads=1)],
        [0],
        (
            "all_reduce #3 of the world (float32 (4,), sum) can never complete:\n"
            "  rank 0 waits in it, in line 2: all_reduce(x)\n"
            "  rank 1 left"
        ),
    ),
    "a cell on some ranks": (
        [stuck(SUM), idle(), idle()],
        [0],
        (
            "all_reduce #3 of the world (float32 (4,), sum) can never complete:\n"
            "  rank 0 waits in it, in line 2: all_reduce(x)\n"
            "  ranks 1-2 do not run this cell"
        ),
    ),
    "one each": (
        [stuck(SUM), finished(), failed(), idle()],
        [0],
        (
            "all_reduce #3 of the world (float32 (4,), sum) can never complete:\n"
            "  rank 0 waits in it, in line 2: all_reduce(x)\n"
            "  rank 1 has finished the cell\n"
            "  rank 2 failed (ValueError: boom)\n"
            "  rank 3 does not run this cell"
        ),
    ),
    "a subgroup": (
        [stuck(C), busy(), finished()],
        [0],
        (
            "c #1 of the group of ranks 0,2 can never complete:\n"
            "  rank 0 waits in it, in line 2: c(x)\n"
            "  rank 2 has finished the cell"
        ),
    ),
    "one has finished, another may come": (
        [stuck(SUM), finished(), busy(), stuck(send(1, 2))],
        [0],
        (
            "all_reduce #3 of the world (float32 (4,), sum) can never complete:\n"
            "  rank 0 waits in it, in line 2: all_reduce(x)\n"
            "  rank 1 has finished the cell\n"
            "  rank 2 is still at line 3: time.sleep(60)\n"
            "  rank 3 waits in send #1 to rank 2 (line 3: send)"
        ),
    ),
    "several failed": (
        [stuck(SUM), failed(), failed()],
        [0],
        (
            "all_reduce #3 of the world (float32 (4,), sum) can never complete:\n"
            "  rank 0 waits in it, in line 2: all_reduce(x)\n"
            "  ranks 1-2 failed (ValueError: boom)"
        ),
    ),
    "several left": (
        [stuck(SUM), dead("left"), dead("left")],
        [0],
        (
            "all_reduce #3 of the world (float32 (4,), sum) can never complete:\n"
            "  rank 0 waits in it, in line 2: all_reduce(x)\n"
            "  ranks 1-2 left"
        ),
    ),
    "one has finished, others said nothing yet": (
        [stuck(SUM), finished(), busy(""), busy("")],
        [0],
        (
            "all_reduce #3 of the world (float32 (4,), sum) can never complete:\n"
            "  rank 0 waits in it, in line 2: all_reduce(x)\n"
            "  rank 1 has finished the cell\n"
            "  ranks 2-3 are still running"
        ),
    ),
    "one has finished, another said nothing yet": (
        [stuck(SUM), finished(), busy("")],
        [0],
        (
            "all_reduce #3 of the world (float32 (4,), sum) can never complete:\n"
            "  rank 0 waits in it, in line 2: all_reduce(x)\n"
            "  rank 1 has finished the cell\n"
            "  rank 2 is still running"
        ),
    ),
    "not far enough": (
        [stuck(SUM), finished(coll(2))],
        [0],
        (
            "all_reduce #3 of the world (float32 (4,), sum) can never complete:\n"
            "  rank 0 waits in it, in line 2: all_reduce(x)\n"
            "  rank 1 has finished the cell"
        ),
    ),
    "another group's calls do not count": (
        [stuck(A), finished(coll(5)), busy()],
        [0],
        (
            "a #1 of the group of ranks 0-1 can never complete:\n"
            "  rank 0 waits in it, in line 2: a(x)\n"
            "  rank 1 has finished the cell"
        ),
    ),
    "a cycle of two": (
        [stuck(A), stuck(coll(4, name="barrier")), stuck(coll(4, name="barrier"))],
        [0, 1, 2],
        (
            "a #1 of the group of ranks 0-1 can never complete:\n"
            "  rank 0 waits in it, in line 2: a(x)\n"
            "  rank 1 waits in barrier #4 of the world (line 2: barrier(x)), as does rank 2,\n"
            "    which needs rank 0"
        ),
    ),
    "a cycle of three": (
        [stuck(A), stuck(B), stuck(C), busy()],
        [0, 1, 2],
        (
            "a #1 of the group of ranks 0-1 can never complete:\n"
            "  rank 0 waits in it, in line 2: a(x)\n"
            "  rank 1 waits in b #1 of the group of ranks 1-2 (line 2: b(x)), which needs\n"
            "    rank 2\n"
            "  rank 2 waits in c #1 of the group of ranks 0,2 (line 2: c(x)), which needs\n"
            "    rank 0"
        ),
    ),
    "a long cycle": (
        [stuck(send(1, (rank + 1) % 9)) for rank in range(9)],
        list(range(9)),
        (
            "send #1 to rank 1 can never complete:\n"
            "  rank 0 waits in it, in line 3: send\n"
            "  rank 1 waits in send #1 to rank 2 (line 3: send), which needs rank 2\n"
            "  rank 2 waits in send #1 to rank 3 (line 3: send), which needs rank 3\n"
            "  and so on through ranks 3-8, back to rank 0"
        ),
    ),
    "a cycle of five": (
        [stuck(send(1, (rank + 1) % 5)) for rank in range(5)],
        list(range(5)),
        (
            "send #1 to rank 1 can never complete:\n"
            "  rank 0 waits in it, in line 3: send\n"
            "  rank 1 waits in send #1 to rank 2 (line 3: send), which needs rank 2\n"
            "  rank 2 waits in send #1 to rank 3 (line 3: send), which needs rank 3\n"
            "  rank 3 waits in send #1 to rank 4 (line 3: send), which needs rank 4\n"
            "  rank 4 waits in send #1 to rank 0 (line 3: send), which needs rank 0"
        ),
    ),
    "a cycle of which two more wait in one call": (
        [stuck(A), *(stuck(coll(4, name="barrier")) for _ in range(3))],
        [0, 1, 2, 3],
        (
            "a #1 of the group of ranks 0-1 can never complete:\n"
            "  rank 0 waits in it, in line 2: a(x)\n"
            "  rank 1 waits in barrier #4 of the world (line 2: barrier(x)), as do ranks\n"
            "    2-3, which needs rank 0"
        ),
    ),
    "crossed sends": (
        [stuck(send(1, 1)), stuck(send(1, 0))],
        [0, 1],
        (
            "send #1 to rank 1 can never complete:\n"
            "  rank 0 waits in it, in line 3: send\n"
            "  rank 1 waits in send #1 to rank 0 (line 3: send), which needs rank 0"
        ),
    ),
    "crossed receives": (
        [stuck(recv(1, 1)), stuck(recv(1, 0))],
        [0, 1],
        (
            "recv #1 from rank 1 can never complete:\n"
            "  rank 0 waits in it, in line 3: recv\n"
            "  rank 1 waits in recv #1 from rank 0 (line 3: recv), which needs rank 0"
        ),
    ),
    "a chain to one who has finished": (
        [stuck(recv(1, 1)), stuck(SUM), finished()],
        [0, 1],
        (
            "all_reduce #3 of the world (float32 (4,), sum) can never complete:\n"
            "  rank 1 waits in it, in line 2: all_reduce(x)\n"
            "  rank 2 has finished the cell\n"
            "  rank 0 waits in recv #1 from rank 1 (line 3: recv)\n"
            "recv #1 from rank 1 can never complete:\n"
            "  rank 0 waits in it, in line 3: recv\n"
            "  rank 1 waits in all_reduce #3 of the world (line 2: all_reduce(x))"
        ),
    ),
    "a chain to a cycle": (
        [stuck(recv(1, 1)), stuck(send(1, 2)), stuck(send(1, 1))],
        [0, 1, 2],
        (
            "send #1 to rank 2 can never complete:\n"
            "  rank 1 waits in it, in line 3: send\n"
            "  rank 2 waits in send #1 to rank 1 (line 3: send), which needs rank 1\n"
            "recv #1 from rank 1 can never complete:\n"
            "  rank 0 waits in it, in line 3: recv\n"
            "  rank 1 waits in send #1 to rank 2 (line 3: send)"
        ),
    ),
    "many at once": (
        [finished(), *(stuck(recv(1, 0)) for _ in range(5))],
        [1, 2, 3, 4, 5],
        (
            "recv #1 from rank 0 can never complete:\n"
            "  rank 1 waits in it, in line 3: recv\n"
            "  rank 0 has finished the cell\n"
            "recv #1 from rank 0 can never complete:\n"
            "  rank 2 waits in it, in line 3: recv\n"
            "  rank 0 has finished the cell\n"
            "recv #1 from rank 0 can never complete:\n"
            "  rank 3 waits in it, in line 3: recv\n"
            "  rank 0 has finished the cell\n"
            "And 2 more calls can never complete."
        ),
    ),
    "one more at once": (
        [finished(), *(stuck(recv(1, 0)) for _ in range(4))],
        [1, 2, 3, 4],
        (
            "recv #1 from rank 0 can never complete:\n"
            "  rank 1 waits in it, in line 3: recv\n"
            "  rank 0 has finished the cell\n"
            "recv #1 from rank 0 can never complete:\n"
            "  rank 2 waits in it, in line 3: recv\n"
            "  rank 0 has finished the cell\n"
            "recv #1 from rank 0 can never complete:\n"
            "  rank 3 waits in it, in line 3: recv\n"
            "  rank 0 has finished the cell\n"
            "And 1 more call can never complete."
        ),
    ),
    "missing at five places": (
        [stuck(coll(1)), *(failed(f"E{rank}") for rank in range(1, 6))],
        [0],
        (
            "all_reduce #1 of the world can never complete:\n"
            "  rank 0 waits in it, in line 2: all_reduce(x)\n"
            "  rank 1 failed (E1)\n"
            "  rank 2 failed (E2)\n"
            "  rank 3 failed (E3)\n"
            "  rank 4 failed (E4)\n"
            "  1 more rank has not arrived"
        ),
    ),
    "missing at six places": (
        [stuck(coll(1)), *(failed(f"E{rank}") for rank in range(1, 7))],
        [0],
        (
            "all_reduce #1 of the world can never complete:\n"
            "  rank 0 waits in it, in line 2: all_reduce(x)\n"
            "  rank 1 failed (E1)\n"
            "  rank 2 failed (E2)\n"
            "  rank 3 failed (E3)\n"
            "  rank 4 failed (E4)\n"
            "  2 more ranks have not arrived"
        ),
    ),
    "missing at many places": (
        [stuck(coll(1)), *(failed(f"E{rank}") for rank in range(1, 8))],
        [0],
        (
            "all_reduce #1 of the world can never complete:\n"
            "  rank 0 waits in it, in line 2: all_reduce(x)\n"
            "  rank 1 failed (E1)\n"
            "  rank 2 failed (E2)\n"
            "  rank 3 failed (E3)\n"
            "  rank 4 failed (E4)\n"
            "  3 more ranks have not arrived"
        ),
    ),
    "a message with a tag, in a subgroup": (
        [busy(), stuck(recv(2, 2, 1, 2, tag=7)), finished(send(1, 1, 1, 2, tag=7), send(5, 1, 1, 2))],
        [1],
        (
            "recv #2 from rank 2 in the group of ranks 1-2 (tag 7) can never\n"
            "    complete:\n"
            "  rank 1 waits in it, in line 3: recv\n"
            "  rank 2 has finished the cell"
        ),
    ),
    "a message within something else": (
        [stuck(recv(1, 1, name="scan")), finished()],
        [0],
        (
            "recv #1 from rank 1 within scan can never complete:\n"
            "  rank 0 waits in it, in line 3: recv\n"
            "  rank 1 has finished the cell"
        ),
    ),
    "from anyone, but all have finished": (
        [stuck(recv(1, None)), finished(), finished()],
        [0],
        (
            "recv #1 from any rank can never complete:\n"
            "  rank 0 waits in it, in line 3: recv\n"
            "  no rank can send it any more:\n"
            "  ranks 1-2 have finished the cell"
        ),
    ),
    "from anyone, one more than there are": (
        [stuck(recv(1, None), did=[recv(2, 1), recv(1, 2)]), finished(send(2, 0)), finished(send(1, 0))],
        [0],
        (
            "recv #1 from any rank can never complete:\n"
            "  rank 0 waits in it, in line 3: recv\n"
            "  no rank can send it any more:\n"
            "  ranks 1-2 have finished the cell"
        ),
    ),
    "from anyone, in a cycle": (
        [stuck(recv(1, None)), stuck(coll(1)), stuck(coll(1))],
        [0, 1, 2],
        (
            "recv #1 from any rank can never complete:\n"
            "  rank 0 waits in it, in line 3: recv\n"
            "  no rank can send it any more:\n"
            "  ranks 1-2 wait in all_reduce #1 of the world (line 2: all_reduce(x))\n"
            "all_reduce #1 of the world can never complete:\n"
            "  ranks 1-2 wait in it, in line 2: all_reduce(x)\n"
            "  rank 0 waits in recv #1 from any rank (line 3: recv)"
        ),
    ),
    "from anyone, who is waited for": (
        [stuck(recv(1, 1)), stuck(recv(1, None)), stuck(recv(1, 1))],
        [0, 1, 2],
        (
            "recv #1 from any rank can never complete:\n"
            "  rank 1 waits in it, in line 3: recv\n"
            "  no rank can send it any more:\n"
            "  ranks 0,2 wait in recv #1 from rank 1 (line 3: recv)\n"
            "recv #1 from rank 1 can never complete:\n"
            "  rank 0 waits in it, in line 3: recv\n"
            "  rank 1 waits in recv #1 from any rank (line 3: recv)\n"
            "recv #1 from rank 1 can never complete:\n"
            "  rank 2 waits in it, in line 3: recv\n"
            "  rank 1 waits in recv #1 from any rank (line 3: recv)"
        ),
    ),
    "a send to one who takes another tag from anyone": (
        [stuck(send(1, 1)), finished(recv(1, None, tag=3))],
        [0],
        (
            "send #1 to rank 1 can never complete:\n"
            "  rank 0 waits in it, in line 3: send\n"
            "  rank 1 has finished the cell"
        ),
    ),
    "a new group": (
        [stuck(coll(2, name="new_group")), finished(coll(1, name="new_group"), coll(9))],
        [0],
        (
            "new_group #2 of the world can never complete:\n"
            "  rank 0 waits in it, in line 2: new_group(x)\n"
            "  rank 1 has finished the cell"
        ),
    ),
    "one of several, all in vain": (
        [stuck(coll(2), coll(3), coll(4)), finished(coll(1))],
        [0],
        (
            "all_reduce #2 of the world can never complete:\n"
            "  rank 0 waits in it or in one of 2 other calls that cannot complete either, in\n"
            "    line 2: all_reduce(x)\n"
            "  rank 1 has finished the cell"
        ),
    ),
    "one of two, both in vain": (
        [stuck(coll(2), coll(3)), finished(coll(1))],
        [0],
        (
            "all_reduce #2 of the world can never complete:\n"
            "  rank 0 waits in it or in another call that cannot complete either, in line 2:\n"
            "    all_reduce(x)\n"
            "  rank 1 has finished the cell"
        ),
    ),
    "one whose thread may issue something waits for one who has finished": (
        [stuck(coll(1), threads=1), finished()],
        [0],
        (
            "all_reduce #1 of the world can never complete:\n"
            "  rank 0 waits in it, in line 2: all_reduce(x)\n"
            "  rank 1 has finished the cell"
        ),
    ),
    "a ring of receives, each with a lane for the other side": (
        [stuck(recv(1, (rank - 1) % 3), lanes=[recv(1, (rank + 1) % 3)]) for rank in range(3)],
        [0, 1, 2],
        (
            "recv #1 from rank 2 can never complete:\n"
            "  rank 0 waits in it, in line 3: recv\n"
            "  rank 2 waits in recv #1 from rank 1 (line 3: recv), which needs rank 1\n"
            "  rank 1 waits in recv #1 from rank 0 (line 3: recv), which needs rank 0"
        ),
    ),
    "one whose lane may go on waits for one who has finished": (
        [stuck(coll(1), lanes=[recv(1, 2)]), finished(), busy()],
        [0],
        (
            "all_reduce #1 of the world can never complete:\n"
            "  rank 0 waits in it, in line 2: all_reduce(x)\n"
            "  rank 1 has finished the cell\n"
            "  rank 2 is still at line 3: time.sleep(60)"
        ),
    ),
    "for one who has finished, whose lane waits in vain": (
        [stuck(recv(1, 1)), finished(lanes=[recv(1, 2)]), finished()],
        [0],
        (
            "recv #1 from rank 1 can never complete:\n"
            "  rank 0 waits in it, in line 3: recv\n"
            "  rank 1 has finished the cell"
        ),
    ),
    "for one who has finished, whose lane waits for who waits": (
        [stuck(recv(1, 1)), finished(lanes=[recv(1, 0)])],
        [0],
        (
            "recv #1 from rank 1 can never complete:\n"
            "  rank 0 waits in it, in line 3: recv\n"
            "  rank 1 has finished the cell"
        ),
    ),
    "for one who is dead, and its lane too": (
        [stuck(recv(1, 1)), dead(lanes=[recv(1, 2)]), busy()],
        [0],
        (
            "recv #1 from rank 1 can never complete:\n"
            "  rank 0 waits in it, in line 3: recv\n"
            "  rank 1 was killed by SIGKILL"
        ),
    ),
    "a line that is just short enough": (
        [stuck(coll(1, line="line 1: " + "x" * 112)), finished()],
        [0],
        (
            "all_reduce #1 of the world can never complete:\n"
            "  rank 0 waits in it, in line 1: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n"
            "    xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n"
            "  rank 1 has finished the cell"
        ),
    ),
    "without a line": (
        [stuck(coll(1, line="")), finished()],
        [0],
        ("all_reduce #1 of the world can never complete:\n  rank 0 waits in it\n  rank 1 has finished the cell"),
    ),
    "begun in another cell": (
        [stuck(coll(1, begun="cell 3")), finished()],
        [0],
        (
            "all_reduce #1 of the world can never complete:\n"
            "  rank 0 waits in it, begun in cell 3, in line 2: all_reduce(x)\n"
            "  rank 1 has finished the cell"
        ),
    ),
    "a collective with a tag of its own": (
        [stuck(coll(1, tag=7)), finished()],
        [0],
        (
            "all_reduce #1 of the world can never complete:\n"
            "  rank 0 waits in it, in line 2: all_reduce(x)\n"
            "  rank 1 has finished the cell"
        ),
    ),
    "an isend": (
        [stuck(send(1, 1, name="isend")), finished()],
        [0],
        (
            "isend #1 to rank 1 can never complete:\n"
            "  rank 0 waits in it, in line 3: send\n"
            "  rank 1 has finished the cell"
        ),
    ),
    "an irecv": (
        [stuck(recv(1, 1, name="irecv")), finished()],
        [0],
        (
            "irecv #1 from rank 1 can never complete:\n"
            "  rank 0 waits in it, in line 3: recv\n"
            "  rank 1 has finished the cell"
        ),
    ),
    "a send without a name": (
        [stuck(send(1, 1, name="")), finished()],
        [0],
        (
            "send #1 to rank 1 can never complete:\n"
            "  rank 0 waits in it, in line 3: send\n"
            "  rank 1 has finished the cell"
        ),
    ),
    "a long line": (
        [stuck(coll(1, line="line 1: " + "x" * 999)), failed("E: " + "y" * 999)],
        [0],
        (
            "all_reduce #1 of the world can never complete:\n"
            "  rank 0 waits in it, in line 1: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n"
            "    xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…\n"
            "  rank 1 failed (E: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\n"
            "    yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy…)"
        ),
    ),
}

ALL_ARRIVED = "waiting in all_reduce #3 of the world (line 2: all_reduce(x)), where all ranks have arrived"

WAITING = {
    "nobody": ([busy(), finished(), idle(), failed(), dead()], ""),
    "for one that computes": (
        [stuck(SUM), stuck(SUM), busy()],
        "waiting for rank 2, at line 3: time.sleep(60)",
    ),
    "for some": (
        [stuck(SUM), busy(), busy(), busy("line 4: f()")],
        "waiting for ranks 1-2, at line 3: time.sleep(60); rank 3, at line 4: f()",
    ),
    "of one that said nothing yet": ([stuck(SUM), busy("")], "waiting for rank 1"),
    "of one nothing is known of": ([stuck(coll(1, 0, 9))], "waiting for rank 9"),
    "for a message of one nothing is known of": ([stuck(recv(1, 9))], "waiting for rank 9"),
    "along a chain": (
        [stuck(A), stuck(B), stuck(send(1, 3)), busy()],
        "waiting for rank 3, at line 3: time.sleep(60)",
    ),
    "all have come": (
        [stuck(SUM), finished(SUM)],
        ALL_ARRIVED,
    ),
    "issued before the cell ended": (
        [stuck(SUM), stuck(SUM, did=[coll(4)]), finished(coll(5))],
        ALL_ARRIVED,
    ),
    "issued by an earlier cell": ([stuck(SUM), idle(SUM)], ALL_ARRIVED),
    "sent by one who has finished": (
        [stuck(recv(2, 1)), finished(send(2, 0))],
        "waiting in recv #2 from rank 1 (line 3: recv), where all ranks have arrived",
    ),
    "received by one who has finished": (
        [stuck(send(2, 1)), finished(recv(2, 0))],
        "waiting in send #2 to rank 1 (line 3: send), where all ranks have arrived",
    ),
    "the next send will free it": (
        [stuck(send(1, 1)), stuck(recv(1, 0))],
        "waiting in send #1 to rank 1 (line 3: send), where all ranks have arrived",
    ),
    "freed by one who is freed": (
        [stuck(recv(1, 1)), stuck(coll(1, 1, 2)), stuck(recv(1, 3)), busy("line 9: f()")],
        "waiting for rank 3, at line 9: f()",
    ),
    "a thread may come": (
        [stuck(SUM), finished(threads=1)],
        "waiting for a thread of rank 1, which has finished the cell",
    ),
    "a thread of one that waits": (
        [stuck(recv(1, 1)), stuck(coll(1, 1, 2), threads=1), busy("line 9: f()")],
        "waiting for rank 2, at line 9: f()",
    ),
    "limited": (
        [stuck(coll(1, name="barrier", limited=True)), finished()],
        "waiting in barrier #1 of the world (line 2: barrier(x)) until its timeout: rank 1 has finished the cell",
    ),
    "limited, for one that computes": (
        [stuck(coll(1, name="barrier", limited=True)), busy()],
        (
            "waiting for rank 1, at line 3: time.sleep(60); barrier #1 of the world (line 2: barrier(x)) has its own "
            "timeout"
        ),
    ),
    "for one whose wait is limited": (
        [stuck(recv(1, 1)), stuck(coll(1, name="barrier", limited=True)), finished()],
        (
            "waiting in barrier #1 of the world (line 2: barrier(x)) until its timeout: rank 0 waits in recv #1 from "
            "rank 1 (line 3: recv), and rank 2 has finished the cell"
        ),
    ),
    "limited, and all have come": (
        [stuck(coll(1, name="barrier", limited=True)), finished(coll(1, name="barrier"))],
        "waiting in barrier #1 of the world (line 2: barrier(x)) until its timeout",
    ),
    "lost": (
        [stuck(coll(1, lost=True)), dead()],
        "waiting for the reason why all_reduce #1 of the world (line 2: all_reduce(x)) lost a connection",
    ),
    "one of several has a chance": (
        [stuck(coll(2), coll(1, 0, 2)), finished(), busy("line 7: g()")],
        "waiting for rank 2, at line 7: g()",
    ),
    "one of several is on its way": (
        [stuck(coll(2), coll(1)), finished(coll(1))],
        "waiting in all_reduce #1 of the world (line 2: all_reduce(x)), where all ranks have arrived",
    ),
    "crossed, but both have threads": (
        [stuck(recv(1, 1), threads=1), stuck(recv(1, 0), threads=1)],
        (
            "waiting for a thread of rank 0, which waits in recv #1 from rank 1 (line 3: recv); a thread of rank 1, "
            "which waits in recv #1 from rank 0 (line 3: recv)"
        ),
    ),
    "crossed, but a lane waits for one that computes": (
        [stuck(recv(1, 1)), stuck(recv(1, 0), lanes=[recv(1, 2)]), busy("line 9: f()")],
        "waiting for rank 2, at line 9: f()",
    ),
    "crossed, but a lane waits for one nothing is known of": (
        [stuck(recv(1, 1)), stuck(recv(1, 0), lanes=[recv(1, 9)])],
        "waiting for rank 9",
    ),
    "crossed, but what a lane waits for has come": (
        [stuck(recv(1, 1)), stuck(recv(1, 0), lanes=[recv(1, 2, tag=5)]), finished(send(1, 1, tag=5))],
        "waiting in recv #1 from rank 2 (tag 5; line 3: recv), where all ranks have arrived",
    ),
    "crossed, but a lane's wait is limited": (
        [stuck(recv(1, 1)), stuck(recv(1, 0), lanes=[recv(1, 2, limited=True)]), finished()],
        "waiting in recv #1 from rank 1 (line 3: recv)",
    ),
    "for a lane of one who has finished": (
        [stuck(recv(1, 1)), finished(lanes=[recv(1, 2)]), busy()],
        "waiting for a thread of rank 1, which has finished the cell",
    ),
    "for one who waits as its lane does": (
        [stuck(recv(1, 1)), stuck(recv(1, 2), lanes=[recv(1, 2, tag=5)]), busy("line 9: f()")],
        "waiting for rank 2, at line 9: f()",
    ),
    "from anyone": (
        [stuck(recv(1, None)), busy(), busy("line 4: f()"), finished()],
        "waiting for one of these: rank 1, at line 3: time.sleep(60); rank 2, at line 4: f()",
    ),
    "from anyone, only one is left": (
        [stuck(recv(1, None)), busy(), finished()],
        "waiting for rank 1, at line 3: time.sleep(60)",
    ),
    "two from anyone, and one may send": (
        [stuck(recv(1, None)), busy(), stuck(recv(1, None))],
        "waiting for rank 1, at line 3: time.sleep(60)",
    ),
    "from anyone, and for one": (
        [stuck(recv(1, None)), busy(), busy(), stuck(recv(1, 4)), busy("line 4: f()")],
        "waiting for rank 4, at line 4: f(); and for one of these: ranks 1-2, at line 3: time.sleep(60)",
    ),
    "from anyone, and it is on its way": (
        [stuck(recv(1, None), did=[recv(1, 1)]), finished(send(2, 0))],
        "waiting in recv #1 from any rank (line 3: recv), where all ranks have arrived",
    ),
    "a send that anyone's receive may take": (
        [stuck(send(1, 2)), stuck(send(1, 2)), finished(recv(1, None))],
        "waiting in send #1 to rank 2 (line 3: send), where all ranks have arrived",
    ),
    "at many places": (
        [stuck(coll(1)), *(busy(f"line {rank}") for rank in range(1, 8))],
        "waiting for rank 1, at line 1; rank 2, at line 2; rank 3, at line 3; rank 4, at line 4; 3 more ranks",
    ),
    "at five places": (
        [stuck(coll(1)), *(busy(f"line {rank}") for rank in range(1, 6))],
        "waiting for rank 1, at line 1; rank 2, at line 2; rank 3, at line 3; rank 4, at line 4; 1 more rank",
    ),
    "at six places": (
        [stuck(coll(1)), *(busy(f"line {rank}") for rank in range(1, 7))],
        "waiting for rank 1, at line 1; rank 2, at line 2; rank 3, at line 3; rank 4, at line 4; 2 more ranks",
    ),
}


@pytest.mark.parametrize(("ranks", "expected", "words"), HOPELESS.values(), ids=HOPELESS)
def test_a_wait_in_vain_is_told_why(ranks, expected, words):
    verdict = judge(world(*ranks))
    assert verdict.stuck == expected
    assert set(expected) <= {wait.rank for wait in verdict.waits}
    assert verdict.hopeless
    assert verdict.why == words
    assert all(len(line) <= WIDTH for line in verdict.text.splitlines())


@pytest.mark.parametrize(
    ("ranks", "remedy"),
    [
        (
            [stuck(SUM), finished(), stuck(SUM), finished()],
            (
                "Let ranks 1,3 call it, too: if it is inside an if, take it out.\n"
                "Or make a group of those that do (new_group), and call it with group=."
            ),
        ),
        (
            [stuck(coll(3, line="line 2: if rank: all_reduce(x)")), finished()],
            "Let rank 1 call it, too: take it out of",
        ),
        ([stuck(coll(3, line="line 2: rank and barrier()")), finished()], "Let rank 1 call it, too: if it is inside"),
        (
            [stuck(coll(3, line="line 2: f(x) if rank else 0")), finished()],
            "Let rank 1 call it, too: take it out of the",
        ),
        ([stuck(SUM), idle()], "Let rank 1 run the cell and call it, too.\nOr make a group of those that do"),
        ([stuck(SUM), idle(), finished()], "Let ranks 1-2 call it, too: if it is inside an if, take it out.\nOr"),
        ([stuck(coll(1, name="new_group")), finished()], "Every rank of the world must call new_group"),
        ([stuck(coll(1, name="split_group")), finished()], "Every rank of the world must call split_group"),
        ([stuck(send(1, 1)), finished()], "Let rank 1 receive it."),
        ([stuck(recv(1, 1)), finished()], "Let rank 1 send to rank 0."),
        ([stuck(recv(1, None)), finished(), finished()], "Let one of them send to rank 0."),
        ([stuck(recv(1, 1)), stuck(recv(1, 0))], "Let one of them send before it receives, or use sendrecv."),
        ([stuck(send(1, 1)), stuck(send(1, 0))], "Let one of them receive before it sends, or use sendrecv or isend."),
        ([stuck(A), stuck(B), stuck(C)], "Let all ranks call the same collectives in the same order."),
    ],
)
def test_what_to_do_about_it_is_told_last(ranks, remedy):
    verdict = judge(world(*ranks))
    assert verdict.remedy.startswith(remedy)
    assert verdict.text == f"{verdict.why}\n{verdict.remedy}"


@pytest.mark.parametrize("other", [failed(), dead(), at("interrupted")])
def test_where_an_error_says_what_to_do_the_verdict_does_not(other):
    assert judge(world(stuck(SUM), other)).text.endswith(("(ValueError: boom)", "SIGKILL", "was interrupted"))


@pytest.mark.parametrize(
    ("ranks", "culprits"),
    [
        ([stuck(SUM), failed(), stuck(SUM)], [1]),
        ([stuck(SUM), dead(), failed()], [1, 2]),
        ([stuck(SUM), at("interrupted")], [1]),
        ([stuck(recv(1, None)), finished(), failed()], [2]),
        ([stuck(SUM), finished(), failed()], []),
        ([stuck(SUM), finished(), stuck(SUM)], []),
        ([stuck(A), stuck(B), stuck(C)], []),
        # Rank 0 waits for rank 1, which waits for rank 2, which has failed.
        ([stuck(A), stuck(B), failed()], [2]),
        # Ranks 0 and 1 wait for each other, whatever rank 3 has done to rank 2.
        ([stuck(recv(1, 1)), stuck(recv(1, 0)), stuck(recv(1, 3)), failed()], []),
    ],
)
def test_the_culprits_are_those_whose_failure_explains_every_wait(ranks, culprits):
    assert judge(world(*ranks)).culprits == culprits


@pytest.mark.parametrize(("ranks", "words"), WAITING.values(), ids=WAITING)
def test_a_wait_that_may_end_is_told_for_whom(ranks, words):
    verdict = judge(world(*ranks))
    assert verdict.stuck == []
    assert not verdict.hopeless
    assert verdict.text == words
    assert bool(verdict.waits) == bool(words)


def test_a_cycle_is_told_once():
    assert judge(world(*HOPELESS["a cycle of three"][0])).text.count("can never complete") == 1
    assert judge(world(*HOPELESS["a long cycle"][0])).text.count("can never complete") == 1


def test_every_wait_is_told_with_whom_it_misses():
    both = stuck(coll(2), coll(1, 0, 2))
    waits = judge(world(both, stuck(coll(2)), busy(), finished(coll(2)))).waits
    assert [(wait.rank, wait.missing) for wait in waits] == [(0, [2]), (1, [2])]
    assert [op.seq for op in waits[0].ops] == [2, 1]


def test_a_receive_from_anyone_that_has_found_its_sender_is_on_its_way():
    doing = CollectiveState(
        received=[MessageCount("g", 1, 0, 1)], waits=[PendingCall("recv", "recv", "g", "0,1", 1, "", "", 0.0)]
    )
    sender = RankReport(1, "finished", doing=CollectiveState(sent=[MessageCount("g", 0, 0, 1)]))
    assert not judge({0: RankReport(0, "running", doing=doing), 1: sender}).hopeless


def test_what_a_rank_said_before_its_part_ended_is_no_wait():
    assert not judge(world(at("finished", waits=[SUM]), busy())).waits


def test_messages_that_are_counted_in_parts_are_added_up():
    parts = CollectiveState(sent=[MessageCount("world", 0, 0, 1), MessageCount("world", 0, 0, 1)])
    ranks = world(stuck(recv(2, 1)), finished())
    assert judge(ranks).hopeless
    assert not judge({**ranks, 1: RankReport(1, "finished", doing=parts)}).hopeless
    ranks = world(stuck(recv(1, None), did=[recv(1, 1)]), finished())
    assert judge(ranks).hopeless
    assert not judge({**ranks, 1: RankReport(1, "finished", doing=parts)}).hopeless


def joins(op: PendingCall, state: str = "running") -> Rank:
    """The main thread waits for a thread that waits in a call."""

    def make(rank: int, size: int) -> RankReport:
        waits = [msgspec.structs.replace(op, ranks=written(range(size)), thread="mine")]
        return at(state, did=[op], line="line 5: t.join()", threads=1, beside=waits)(rank, size)

    return make


VAIN = "so it waits forever: press ■ to end the cell"


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ([finished(), finished()], f"ranks 1-2 have finished the cell, {VAIN}"),
        (
            [finished(), busy()],
            f"rank 1 has finished the cell, and rank 2 is still at line 3: time.sleep(60), {VAIN}",
        ),
        ([stuck(coll(1)), busy()], "rank 2 is still at line 3: time.sleep(60)"),
        ([finished(threads=1), busy()], "rank 1 has finished the cell, and rank 2 is still at line 3: time.sleep(60)"),
    ],
)
def test_a_thread_that_its_rank_waits_for_is_told_and_never_judged(others, said):
    reports = world(joins(coll(1)), *others)
    assert not judge(reports).hopeless
    where = "all_reduce #1 of the world (line 2: all_reduce(x))"
    assert of_threads(reports) == f"waiting for a thread of rank 0 (mine), which waits in {where}: {said}"


def test_a_thread_that_receives_from_anyone_misses_the_others():
    text = of_threads(world(joins(recv(1, None)), finished(), finished()))
    assert text.endswith(f"waits in recv #1 from any rank (line 3: recv): ranks 1-2 have finished the cell, {VAIN}")


@pytest.mark.parametrize(
    ("waiting", "told", "more"), [(3, 3, ""), (4, 3, "; and 1 more thread"), (5, 3, "; and 2 more threads")]
)
def test_of_many_threads_some_are_told(waiting, told, more):
    parts = of_threads(world(*(joins(coll(1)) for _ in range(waiting)), busy())).partition("; and ")
    assert parts[0].count("waiting for a thread of rank") == told
    assert "; waiting for a thread of rank 1 (mine), which" in parts[0]
    assert parts[1] + parts[2] == more


def test_threads_that_wait_for_nobody_are_not_told():
    assert not of_threads(world(joins(coll(1)), finished(coll(1)), stuck(coll(1))))
    assert not of_threads(world(busy(), finished()))
    assert not of_threads(world(joins(coll(1), "finished"), busy()))


MANY: dict[str, Callable[[int], list[Rank]]] = {
    "a collective": lambda size: [finished(), *(stuck(coll(1)) for _ in range(size - 1))],
    "half are late": lambda size: [stuck(coll(1)) if rank % 2 else busy() for rank in range(size)],
    "a ring": lambda size: [stuck(send(1, (rank + 1) % size)) for rank in range(size)],
    "a chain": lambda size: [*(stuck(recv(1, rank + 1)) for rank in range(size - 1)), busy()],
    "a chain in vain": lambda size: [*(stuck(recv(1, rank + 1)) for rank in range(size - 1)), finished()],
    "from anyone": lambda size: [stuck(recv(1, None)) for _ in range(size)],
    "from anyone, and one may send": lambda size: [busy(), *(stuck(recv(1, None)) for _ in range(size - 1))],
}


@pytest.mark.parametrize("kind", MANY)
def test_64_ranks_are_judged_in_milliseconds(kind):
    reports = world(*MANY[kind](64))
    took = []
    for _ in range(5):
        began = time.perf_counter()
        judge(reports)
        took.append(time.perf_counter() - began)
    assert min(took) < 0.05  # it takes 1 or 2 ms; a busy machine is no reason to fail


@pytest.mark.parametrize("kind", MANY)
def test_the_work_grows_as_the_ranks_do(kind):
    def work(size: int) -> int:
        reports = world(*MANY[kind](size))
        return lines_run(lambda: judge(reports))

    assert work(256) < 6 * work(64), "4 times the ranks; a square law would be 16"


# ── programs ────────────────────────────────────────────────────────────────────────────────────────


def glances(play: Play, tape: Tape, *, torn: bool) -> tuple[dict[int, RankReport], list[int]]:
    """Each rank's report at a moment of its own, and how often it had moved by then.

    ``torn``: a rank looks what it waits for, what its lanes do, has threads, and has issued at moments one after the
    other.
    """
    reports, moves = {}, []
    for rank in range(len(play.programs)):
        moments = sorted(tape.below(len(play.history)) for _ in range(3 + play.lanes))
        first, *between, last = (play.history[moment if torn else moments[0]][rank] for moment in moments)
        report, counts, lanes = first.report, last.report.doing, between[0].lanes
        threads, waits = len(between[-1].alive - lanes.keys()), [*lanes.values()]
        doing = CollectiveState(
            counts.issued, counts.sent, counts.received, report.doing.waits, report.doing.line, threads, lanes=waits
        )
        reports[rank] = RankReport(rank, report.state, report.note, doing)
        moves.append(first.moves)
    return reports, moves


KINDS = pytest.mark.parametrize(
    ("anyone", "lanes"),
    [(False, False), (True, False), (False, True), (True, True)],
    ids=["by name", "from anyone too", "with lanes", "from anyone, with lanes"],
)


@KINDS
def test_who_is_said_to_wait_in_vain_never_moves_again(anyone, lanes):
    told = 0

    @examples(1500)
    @given(st.binary(min_size=500, max_size=500))
    def law(choices):
        nonlocal told
        play = any_play(Tape(choices), anyone=anyone, lanes=lanes)
        moments = Tape(hashlib.shake_256(choices).digest(200))  # as random as can be: many looks at one play
        for _ in range(8):
            # A receive from anyone that meets its sender between two looks is no more what it was.
            reports, moves = glances(play, moments, torn=not anyone)
            for rank in judge(reports).stuck:
                assert moves[rank] == play.moves[rank]
                told += 1

    law()
    assert told > (200 if lanes else 1000) * part()  # or the law is empty


@KINDS
def test_when_nothing_moves_any_more_whoever_is_stuck_is_said_to_be(anyone, lanes):
    told = 0

    @examples(1500)
    @given(st.binary(min_size=500, max_size=500))
    def law(choices):
        nonlocal told
        play = any_play(Tape(choices), anyone=anyone, lanes=lanes)
        verdict = judge({rank: report.report for rank, report in enumerate(play.history[-1])})
        assert set(verdict.stuck) <= set(play.stuck())
        if not play.threads() and not play.unclear():
            assert verdict.stuck == play.stuck()
            told += len(verdict.stuck)

    law()
    assert told > (200 if lanes else 1000) * part()  # or the law is empty
