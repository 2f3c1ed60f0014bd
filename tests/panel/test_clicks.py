"""What a click in the panel does, and what a late one does not."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest

from nbcomm.panel.clicks import PATIENCE, ButtonClicks


def pressing(action: str = "heal", at: float = 100.0) -> dict[str, Any]:
    return {"kind": "press", "action": action, "token": "t", "at": at}


class Page:
    """A page that writes down what it is told, and what the kernel did between."""

    def __init__(self, now: float = 100.0) -> None:
        self.log: list[Any] = []
        self.clicks = ButtonClicks(
            {"heal": self.heal, "fail": self.fail, "break": self.interrupted}, self.log.append, wall=lambda: now
        )

    def heal(self) -> str:
        self.log.append("healing")
        return "rank 2 has a new process"

    def fail(self) -> str:
        raise ValueError("no rank is dead")

    def interrupted(self) -> str:
        raise KeyboardInterrupt


def test_it_is_heard_then_done() -> None:
    page = Page()
    page.clicks.hear(pressing())
    assert page.log == [
        {"kind": "heard", "token": "t"},
        "healing",
        {"kind": "done", "token": "t", "text": "rank 2 has a new process", "ok": True},
    ]


@pytest.mark.parametrize(
    ("action", "says"),
    [
        ("fail", "no rank is dead"),
        ("break", "The break was interrupted."),
        ("dance", "This world has no 'dance'; it has: heal, fail, break."),
    ],
)
def test_what_goes_wrong_is_the_sentence(action: str, says: str) -> None:
    page = Page()
    page.clicks.hear(pressing(action))
    assert page.log[-1] == {"kind": "done", "token": "t", "text": says, "ok": False}


def test_a_click_that_is_heard_twice_is_done_once() -> None:
    page = Page()
    for _ in range(2):
        page.clicks.hear(pressing())
    assert page.log.count("healing") == 1
    assert len(page.log) == 3


@pytest.mark.parametrize("at", [100.0, True, -math.inf])
def test_a_click_that_is_heard_late_is_dropped_and_the_page_told_the_time(at: float) -> None:
    now = 100.0 + PATIENCE + 0.01
    page = Page(now)
    page.clicks.hear(pressing(at=at))
    assert page.log == [{"kind": "late", "token": "t", "now": now}]
    page.clicks.hear(pressing(at=now))
    assert "healing" in page.log


def test_a_click_from_a_clock_ahead_of_the_kernels_counts() -> None:
    page = Page(now=99.9)
    page.clicks.hear(pressing())
    assert "healing" in page.log


@pytest.mark.parametrize("at", [math.nan, math.inf, 10**400, 101.5, 1e18, "100.0", None, [100.0]])
def test_a_click_at_no_time_that_can_be_is_dropped_without_a_word(at: object) -> None:
    page = Page()
    page.clicks.hear(pressing() | {"at": at})
    assert page.log == []


@pytest.mark.parametrize(
    "content", [None, "press", {}, {"kind": "hello"}, pressing() | {"at": "now"}, pressing() | {"token": 3}]
)
def test_what_is_no_press_is_ignored(content: object) -> None:
    page = Page()
    page.clicks.hear(content)
    assert page.log == []


def test_its_age_is_judged_when_the_main_thread_is_free() -> None:
    now, later, log = [100.0], [], []
    clicks = ButtonClicks({"heal": lambda: "healed"}, log.append, on_main=later.append, wall=lambda: now[0])
    clicks.hear(pressing())
    assert log == []
    now[0] = 200.0
    later[0]()
    assert log == [{"kind": "late", "token": "t", "now": 200.0}]


def test_what_another_thread_hears_is_done_on_the_kernels_main_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    soon: list[Any] = []

    class Shell:
        kernel = type("Kernel", (), {"io_loop": type("Loop", (), {"add_callback": staticmethod(soon.append)})})

    monkeypatch.setattr("IPython.core.getipython.get_ipython", lambda: Shell)
    page = Page()
    page.clicks = ButtonClicks({"heal": page.heal}, page.log.append, wall=lambda: 100.0)
    thread = threading.Thread(target=page.clicks.hear, args=[pressing()])
    thread.start()
    thread.join(10)
    assert page.log == []
    soon[0]()
    assert "healing" in page.log
