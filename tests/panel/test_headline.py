"""The panel's one sentence."""

from __future__ import annotations

from nbcomm.analysis.story import Ladder, Rung
from nbcomm.panel import RankView
from nbcomm.panel.headline import headline

HANG = Ladder(rungs=(Rung(4, "all_reduce", "", ("failed", "failed", "missing")),))
FAILED = [RankView(r, state="failed", error="HangError: all_reduce #4 …") for r in range(2)]
IDLE = RankView(2, state="idle")


def test_a_hang_reads_as_who_did_not_reach_it() -> None:
    assert headline([*FAILED, IDLE], HANG, "") == "rank 2 did not reach all_reduce #4; ranks 0-1 were stopped in it"


def test_a_wait_that_may_end_says_for_whom() -> None:
    views = [RankView(0, state="waiting"), RankView(1, state="running")]
    assert headline(views, Ladder(), "waiting for rank 1, at line 3: time.sleep(60)").startswith("waiting for rank 1")


def test_else_the_states_speak() -> None:
    assert headline([IDLE], HANG, "") is None
    assert headline([RankView(0, state="failed", error="ValueError: no")], HANG, "") is None
    assert headline([RankView(0, state="dead"), *FAILED], HANG, "waiting") is None
    stopped = [
        RankView(r, state="interrupted", note="was stopped because rank 2 failed", error="HangError: …")
        for r in range(2)
    ]
    assert headline([*stopped, RankView(2, state="failed", error="ValueError: no")], HANG, "") is None
    alike = Ladder(rungs=(Rung(1, "all_reduce", "", ("failed", "failed")),))
    assert headline([RankView(0, state="failed", error="MismatchError: …")], alike, "") is None
