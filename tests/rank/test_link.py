"""When the link's thread of a rank looks for output, in a rank that is played without a process."""

from __future__ import annotations

import time

import pytest

from nbcomm.rank.link import RankLink
from nbcomm.rank.main_loop import MainThreadState


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> RankLink:
    """One that was made in part: the clock stands still, and what it sends is counted."""
    made = RankLink.__new__(RankLink)
    made._main_thread = MainThreadState()
    made._look_at = float("inf")
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    return made


def test_while_a_cell_runs_or_is_about_to_it_is_looked_for_often(link: RankLink) -> None:
    assert link._until_output() == 250
    link._main_thread.heard = 1  # and has not begun
    assert link._until_output() == 50
    link._main_thread.set("running", 1)
    assert link._until_output() == 50
    link._main_thread.answered = 1
    link._main_thread.set("idle")
    link._look_at = float("inf")
    assert link._until_output() == 250


def test_messages_that_come_meanwhile_do_not_put_it_off(link: RankLink, monkeypatch: pytest.MonkeyPatch) -> None:
    link._until_output()
    monkeypatch.setattr(time, "monotonic", lambda: 100.2)
    assert link._until_output() in (50, 51)
    monkeypatch.setattr(time, "monotonic", lambda: 100.3)
    assert link._until_output() == 0


def test_what_hurries_is_looked_for_at_once(link: RankLink, monkeypatch: pytest.MonkeyPatch) -> None:
    roused: list[bool] = []
    monkeypatch.setattr(RankLink, "_rouse", lambda _: roused.append(True))
    link._until_output()
    link._hurry_output()
    assert (link._until_output(), roused) == (0, [True])
