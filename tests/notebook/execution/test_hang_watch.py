"""What the watch says of a cell, and when it ends one; the ranks are played here."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from nbcomm.analysis.wait_graph import RankReport
from nbcomm.faults import failure
from nbcomm.notebook.cluster.pending import PendingRequest
from nbcomm.notebook.cluster.rank_table import Question
from nbcomm.notebook.execution import hang_watch
from nbcomm.notebook.execution.hang_watch import HangWatch, _cut_off
from nbcomm.protocol import CollectiveState, Done, MessageCount, PendingCall, StatusReply

RUN = 5


class World:
    """Two ranks that run a cell, and a watch that judges when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(hang_watch, "keep", lambda *_: None)  # no thread
        self.request = PendingRequest(RUN, [0, 1])
        self.request.note_sent(0)
        self.number, self.ended_ago = 1, 0.0
        self.ranks, self.dead = [0, 1], dict[int, str]()
        self.states = {0: CollectiveState(), 1: CollectiveState()}
        self.imports = dict[int, str]()
        self.begun = RUN
        self.asked = self.heard = 0
        self.meanwhile: Any = lambda: None
        self.notices: list[str] = []
        self.aborted: list[tuple[str, str]] = []
        self.culprits: list[int] = []
        anything: Any = self
        self.watch = HangWatch(
            anything,
            anything,
            anything,
            cell=lambda: (self.request, anything),
            tell_panel=lambda: None,
            collective_log=anything,
            look=lambda: None,
            compare=lambda: None,
            addressed=lambda text: f"{text} --world w",
        )

    def judged(self) -> tuple[str, str, list[tuple[str, str]]]:
        self.watch._judge()
        return self.notices[-1] if self.notices else "–", self.watch.waiting, self.aborted

    # The rank table.

    def doing(self, rank: int, _: int) -> CollectiveState:
        return self.states[rank]

    def snapshot(self, rank: int) -> StatusReply:
        run = RUN if self.begun == RUN else None
        doing = self.states[rank]
        return StatusReply(
            rank, 1, "running", 0, run, 0, 0, 0, self.number, doing, self.heard, heard=RUN, begun=self.begun
        )

    @contextmanager
    def asking(self) -> Iterator[Question]:
        self.asked += 1
        yield Question(self.asked, [])

    # The link.

    def poll(self, question: int) -> None:
        self.heard = question
        self.meanwhile()

    def importing(self, ranks: list[int], _run: int) -> dict[int, str]:
        return {rank: self.imports[rank] for rank in ranks if rank in self.imports}

    def dead_among(self, ranks: list[int]) -> list[int]:
        return [rank for rank in ranks if rank in self.dead]

    # The generations.

    def ending_for(self, _: PendingRequest) -> float:
        return self.ended_ago

    def abort(self, _: PendingRequest, kind: str, text: str, culprits: Sequence[int]) -> None:
        self.aborted.append((kind, text))
        self.culprits = [*culprits]

    # The cell's output.

    def notice(self, text: str) -> None:
        self.notices.append(text)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def stuck(since: float, **more: Any) -> CollectiveState:
    """In a barrier since so many seconds."""
    call = PendingCall("collective", "barrier", "0", "0,1", 1, "", "line 1: barrier()", time.time() - since, **more)
    return CollectiveState({"0": 1}, waits=[call])


def test_a_wait_is_told_to_the_panel_at_once_and_to_the_cell_when_it_lasts(world: World) -> None:
    assert world.judged() == ("", "", [])
    world.states[0] = stuck(1)
    notice, waiting, _ = world.judged()
    assert notice == ""
    assert "rank 0 waits" in waiting or "waiting for rank 1" in waiting
    world.states[0] = stuck(6)
    assert world.judged() == (waiting, waiting, [])


def test_a_hopeless_wait_ends_the_cell_and_is_in_its_error_alone(world: World) -> None:
    world.states[0] = stuck(6)
    world.request.answer(1, Done(RUN))
    notice, waiting, [(kind, text)] = world.judged()
    assert (notice, waiting, kind) == ("", "", "HangError")
    assert "rank 1 has finished the cell" in text
    assert world.culprits == [], "nobody has failed"


def in_send(number: int, peer: int) -> CollectiveState:
    """Inside torch's method that sends a message: it takes microseconds, and a report may be made right then."""
    call = PendingCall("send", "isend", "0", "0,1", number, "", "line 1: isend(x)", time.time(), peer)
    return CollectiveState(sent=[MessageCount("0", peer, 0, number)], waits=[call])


def test_what_waits_for_ever_by_one_report_and_not_by_the_next_is_not_ended(world: World) -> None:
    world.states = {0: in_send(7, 1), 1: in_send(7, 0)}

    def go_on() -> None:
        world.states = {0: in_send(8, 1), 1: CollectiveState(sent=[MessageCount("0", 0, 0, 8)])}

    world.meanwhile = go_on
    assert world.judged() == ("–", "", [])
    world.states = {0: in_send(8, 1), 1: in_send(8, 0)}
    world.meanwhile = lambda: None
    [(kind, text)] = world.judged()[2]
    assert (kind, "send #8" in text) == ("HangError", True)


def test_who_does_not_confirm_that_it_waits_is_asked_in_the_next_round(world: World) -> None:
    world.states[0] = stuck(6)
    world.request.answer(1, Done(RUN))
    world.meanwhile = lambda: setattr(world, "heard", world.asked - 1)
    assert world.judged()[2] == []
    world.meanwhile = lambda: world.request.answer(0, Done(RUN))
    assert world.judged()[2] == [], "it has ended meanwhile"


def test_what_a_rank_raised_is_the_reason(world: World) -> None:
    world.states[0] = stuck(6)
    world.request.answer(1, Done(RUN, failure=failure(1, ValueError("no"))))
    assert "rank 1 failed (" in world.judged()[2][0][1]
    assert world.culprits == [1]


def test_a_death_is_told_at_once_and_ends_the_cell_where_it_cut_off_a_call(world: World) -> None:
    world.dead = {1: "was killed by SIGKILL"}
    assert world.judged() == ("rank 1 was killed by SIGKILL; the other ranks keep running", "", [])
    world.states[0] = stuck(0, lost=True)
    assert world.judged()[2] == [("HangError", "barrier #1 (line 1: barrier()) was cut off by the death of rank 1.")]
    assert len(world.notices) == 1
    assert world.culprits == [1]


def test_how_a_rank_died_is_told_by_its_own_error_if_the_cell_ran_there(world: World) -> None:
    world.dead = {1: "was killed by SIGKILL"}
    world.states[0] = stuck(0)
    [(_, text)] = world.judged()[2]
    assert text.endswith("\n  rank 0 waits in it, in line 1: barrier()\n  rank 1 has died")
    world.aborted.clear()
    world.request = PendingRequest(RUN, [0])
    [(_, text)] = world.judged()[2]
    assert text.endswith("\n  rank 0 waits in it, in line 1: barrier()\n  rank 1 was killed by SIGKILL")


def test_a_cell_that_was_ended_and_goes_on_is_told_how_to_replace_the_ranks(world: World) -> None:
    world.ended_ago, world.states[0] = 6.0, stuck(6)
    world.request.answer(1, Done(RUN))
    assert world.judged() == (
        "rank 0 does not react to the end of this cell; press ■, then type %distributed heal 0 --world w",
        "",
        [],
    )


def test_a_rank_that_is_kept_from_the_cell_is_named_after_a_while(world: World) -> None:
    world.begun = RUN - 1
    assert world.judged()[0] == ""
    world.request.sent = 0, time.monotonic() - 6
    assert world.judged()[0] == ("ranks 0-1 cannot begin: a task or a callback of an earlier cell is still running")


def test_an_interrupted_cell_is_left_alone(world: World) -> None:
    world.states[0], world.request.interrupted = stuck(6), True
    world.request.answer(1, Done(RUN))
    assert world.judged() == ("", "", [])


def test_a_cell_is_told_which_library_its_end_waits_for(world: World) -> None:
    world.imports = {0: "sympy", 1: "sympy"}
    assert world.judged() == ("", "", []), "it is to go on"
    world.ended_ago = 6.0
    assert world.judged()[0] == "ranks 0-1 are importing sympy: the cell ends there after that, in 20 s at most"
    world.ended_ago = 26.0
    assert world.judged()[0].startswith("ranks 0-1 do not react to the end of this cell")
    world.request.interrupted, world.imports = True, {1: "sympy"}
    assert world.judged()[0] == "rank 1 is importing sympy: the interrupt takes effect after that, in 20 s at most"
    world.imports = {}
    assert world.judged()[0] == "", "the import has ended, and the cell is about to"


def test_a_call_that_deaths_cut_off_names_each_and_leaves_their_ends_to_their_own_errors() -> None:
    op = PendingCall("collective", "all_reduce", "0", "0-3", 1, "", "line 2: all_reduce(x)", 0.0, lost=True)
    reports = {
        0: RankReport(0, "running", doing=CollectiveState({"0": 1}, waits=[op])),
        1: RankReport(1, "dead", "was killed by SIGKILL"),
        2: RankReport(2, "dead", "ended with exit code 3"),
        3: RankReport(3, "dead", "was killed by SIGKILL"),
    }
    assert _cut_off(reports) == (
        "all_reduce #1 (line 2: all_reduce(x)) was cut off by the death of ranks 1-3.",
        [1, 2, 3],
    )


def test_a_watch_that_rests_is_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = World(monkeypatch).watch
    monkeypatch.setattr(hang_watch, "_BUSY", 60.0)
    thread = watch._thread = threading.Thread(target=watch._poll, daemon=True)
    watch.hurry()
    thread.start()
    deadline = time.monotonic() + 60
    while watch._hurry.is_set():  # it rests when it has taken that
        assert time.monotonic() < deadline
        time.sleep(0.001)
    watch.close()
    assert not thread.is_alive()
