"""What the link's thread of a rank does and when, in a rank that is played without a process."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from nbcomm.faults import Faults
from nbcomm.rank import link as module
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


# ── what its thread survives ────────────────────────────────────────────────────────────────────────


class End:
    """A connection on which something has come, and whose monitor fails."""

    closed = connected = False
    link, monitor = "link", "monitor"

    def looks_up(self) -> Iterator[bool]:
        raise RuntimeError("on purpose")


def test_where_it_cannot_be_looked_who_is_there_what_has_come_is_heard(
    link: RankLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Any] = []
    end: Any = End()
    link._faults, link._unheard = Faults(lambda: None), deque()
    monkeypatch.setattr(RankLink, "_hear_arrived", lambda _, end: heard.append(end))
    link._hear_all(end, {"link": 1, "monitor": 1})
    assert heard == [end]


def test_rounds_that_fail_are_not_the_end_but_those_that_fail_without_end_are(
    link: RankLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[int] = []

    def fails(*_: object) -> None:
        rounds.append(1)
        if len(rounds) != 15:
            raise RuntimeError("on purpose")

    monkeypatch.setattr(module, "_BACKOFF", 0.0)
    monkeypatch.setattr(RankLink, "_round", fails)
    logged: list[int] = []
    link._faults = Faults(lambda: logged.append(1))
    with pytest.raises(RuntimeError, match="a round of the link failed: RuntimeError: on purpose"):
        link._serve(None, None)  # type: ignore[arg-type]
    assert len(rounds) == 15 + module._ROUNDS
    assert logged == [1], "it fills no disk"
