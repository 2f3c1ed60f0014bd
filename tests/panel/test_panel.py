"""When the panel speaks to the browser, and what it leaves in the notebook's file."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from nbcomm.analysis.story import Rung
from nbcomm.panel import JobView, Ladder, Panel, RankView, feed
from nbcomm.panel import panel as widget


def world(*states: str, pid: int = 100, memory: int = 0, since: float = 5.0) -> list[RankView]:
    return [RankView(i, pid=pid + i, state=state, since=since, memory=memory) for i, state in enumerate(states)]


# ── the panel: with a widget and a display that only write down ──


class Recorder:
    """Stands for the widget; `sent` grows with each message, and `news` tells of it."""

    def __init__(self, read: Any) -> None:
        self.read = read
        self.sent: list[dict[str, Any]] = []
        self.news = threading.Semaphore(0)
        self.layout = self
        self.closed = 0
        self.hear: Any = None

    def on_msg(self, callback: Any) -> None:
        self.hear = callback

    def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)
        self.news.release()

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def displays(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, dict[str, str]]]:
    shown: list[tuple[bool, dict[str, str]]] = []
    monkeypatch.setattr(widget, "in_kernel", lambda: True)
    monkeypatch.setattr(widget, "open_widget", lambda _main, read: Recorder(read))
    monkeypatch.setattr(widget, "_display", lambda bundle, _id, *, update: shown.append((update, bundle)))
    return shown


def test_the_file_holds_a_table_and_never_a_widget(displays: list[tuple[bool, dict[str, str]]]) -> None:
    panel = Panel("w", "gloo", world("idle"))
    panel.show()
    [(update, bundle)] = displays
    assert not update
    assert set(bundle) == {"text/html", "text/plain"}
    assert bundle["text/html"].startswith(f'<div class="nbcomm-panel nbcomm-world-{panel.id}"><div>')


def test_showing_it_twice_opens_one_widget(displays: list[tuple[bool, dict[str, str]]]) -> None:
    panel = Panel("w", "gloo", world("idle"))
    panel.show()
    first = panel._widget
    panel.show()
    assert panel._widget is first
    assert len(displays) == 2


def test_whoever_reads_the_widgets_state_gets_the_state_of_now(displays: list[tuple[bool, dict[str, str]]]) -> None:
    panel = Panel("w", "gloo", world("idle"))
    panel.show()
    panel.update(world("running"))
    assert panel._widget.read()["rows"][0][0] == "running"


@pytest.fixture
def burst(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this thread is, its updates come within the interval of two messages, and before a keyframe."""
    monkeypatch.setattr(feed, "INTERVAL", 2.0)
    monkeypatch.setattr(feed, "KEYFRAME", 60.0)


@pytest.mark.usefixtures("burst")
def test_the_last_of_a_burst_arrives_without_another_call(displays: list[tuple[bool, dict[str, str]]]) -> None:
    panel = Panel("w", "gloo", world("idle"))
    panel.show()
    for state in ("running", "waiting", "running", "failed"):
        panel.update(world(state))
    recorder = panel._widget
    for _ in range(2):
        assert recorder.news.acquire(timeout=10)
    assert [message["kind"] for message in recorder.sent] == ["snapshot", "delta"]
    assert recorder.sent[1]["rows"]["0"][0] == "failed"


@pytest.mark.usefixtures("burst")
def test_a_burst_whose_end_cannot_be_sent_is_sent_a_moment_later(
    displays: list[tuple[bool, dict[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    panel = Panel("w", "gloo", world("idle"))
    panel.show()
    take, failed = panel._feed.take, threading.Event()

    def failing(*args: Any) -> Any:
        if threading.current_thread().name == "nbcomm-panel" and not failed.is_set():
            failed.set()
            raise SystemExit
        return take(*args)

    monkeypatch.setattr(panel._feed, "take", failing)
    panel.update(world("running"))
    panel.update(world("failed"))
    for _ in range(2):
        assert panel._widget.news.acquire(timeout=10)
    assert failed.is_set()
    assert panel._widget.sent[-1]["rows"]["0"][0] == "failed"


def test_settle_writes_a_new_table_only_when_one_is_due(displays: list[tuple[bool, dict[str, str]]]) -> None:
    panel = Panel("w", "gloo", world("idle", memory=300 << 20))
    panel.settle()
    assert displays == []
    panel.show()
    panel.update(world("idle", memory=301 << 20, since=9.0))
    panel.settle()
    assert len(displays) == 1
    panel.update(world("failed", memory=301 << 20))
    panel.settle()
    update, bundle = displays[-1]
    assert update
    assert "rank 0 failed" in bundle["text/plain"]
    panel.update(world("failed", memory=600 << 20))
    panel.settle()
    assert len(displays) == 3


def test_a_job_stays_and_one_that_is_prolonged_is_worth_a_new_table(
    displays: list[tuple[bool, dict[str, str]]],
) -> None:
    panel = Panel("w", "gloo", world("idle"))
    panel.show()
    now = time.time()
    for ends, tables, left in (
        (now + 3625, 2, "1 h 0 min"),
        (now + 3625, 2, "1 h 0 min"),
        (now + 7225, 3, "2 h 0 min"),
    ):
        panel.update(world("idle"), job=JobView("Slurm job 12", ends))
        panel.update(world("idle"))
        panel.settle()
        assert len(displays) == tables
        for text in displays[-1][1].values():
            assert f"1 node · gloo · Slurm job 12, {left} left" in text
        assert panel._widget.read()["job"] == ["Slurm job 12", ends]


def test_what_a_stopped_world_leaves_counts_no_time_of_its_job(displays: list[tuple[bool, dict[str, str]]]) -> None:
    panel = Panel("w", "gloo", world("idle"))
    panel.show()
    panel.update(world("idle"), job=JobView("Slurm job 12", time.time() + 3600))
    recorder = panel._widget
    panel.close()
    assert (recorder.sent[-1]["kind"], recorder.sent[-1]["job"]) == ("end", ["Slurm job 12", None])
    assert displays[-1][1]["text/plain"].startswith("w · 1 node · gloo · Slurm job 12\n")


def test_what_it_tells_of_a_cell_is_known(displays: list[tuple[bool, dict[str, str]]]) -> None:
    panel = Panel("w", "gloo", world("idle", "idle"))
    assert not panel.of_a_cell
    wrong = Ladder(rungs=(Rung(1, "barrier", "", ("failed", "missing")),))
    for views, ladder in (
        (world("idle", "running"), Ladder()),
        (world("idle", "dead"), Ladder()),
        ([dataclasses.replace(view, error="ValueError") for view in world("idle", "idle")], Ladder()),
        (world("idle", "idle"), wrong),
    ):
        panel.update(views, ladder=ladder)
        assert panel.of_a_cell
        panel.update(world("idle", "idle"), ladder=Ladder(rungs=(Rung(1, "barrier", "", ("done", "done")),)))
        assert not panel.of_a_cell


def test_close_leaves_the_last_state_and_says_so_once(displays: list[tuple[bool, dict[str, str]]]) -> None:
    panel = Panel("w", "gloo", world("running"))
    panel.show()
    recorder = panel._widget
    panel.close()
    panel.close()
    panel.update(world("idle"))
    assert [message["kind"] for message in recorder.sent] == ["end"]
    assert recorder.closed == 2  # the widget and its layout
    assert "stopped; this was the last state" in displays[-1][1]["text/plain"]
    assert len(displays) == 2


def test_a_page_whose_kernel_restarts_is_told_nothing(displays: list[tuple[bool, dict[str, str]]]) -> None:
    panel = Panel("w", "gloo", world("running"))
    panel.show()
    recorder = panel._widget
    panel.close(tell_page=False)
    assert (recorder.sent, recorder.closed) == ([], 0)
    assert "stopped; this was the last state" in displays[-1][1]["text/plain"]


def test_the_views_need_no_panel(displays: list[tuple[bool, dict[str, str]]], monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    closed: list[int] = []

    def open_views(_ran: object) -> Callable[[], None]:
        opened.append(1)
        return lambda: closed.append(1)

    monkeypatch.setattr(widget, "open_views", open_views)
    panel = Panel("w", "gloo", world("running"))
    panel.offer_views()
    panel.offer_views()
    panel.update(world("idle"))
    assert (opened, displays, panel._widget) == ([1], [], None)  # no message of a panel that nobody asked for
    panel.show()
    panel.close()
    assert (opened, closed) == ([1], [1])


def test_a_kernel_that_shuts_down_is_nobodys_error(
    displays: list[tuple[bool, dict[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(_self: Recorder, _message: dict[str, Any]) -> None:
        raise OSError("the socket is closed")

    monkeypatch.setattr(Recorder, "send", gone)
    panel = Panel("w", "gloo", world("idle"))
    panel.show()
    panel.update(world("running"))
    panel.close()


def test_without_a_kernel_it_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    panel = Panel("w", "gloo", world("idle"))
    panel.show()
    panel.update(world("running"))
    panel.settle()
    panel.close()
    title, said, columns, *_ = capsys.readouterr().out.splitlines()
    assert (title, columns.split()[0]) == ("w · 1 node · gloo", "rank")
    assert said.endswith(", when this copy was made: the rank is idle")


@pytest.mark.ranks
def test_importing_the_panel_imports_no_widgets_and_no_torch() -> None:
    code = "import sys, nbcomm.panel; print(sorted({'torch', 'anywidget', 'ipywidgets', 'IPython'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


# ── its buttons ──


def test_a_press_acts_and_is_answered(displays: list[tuple[bool, dict[str, str]]]) -> None:
    panel = Panel("w", "gloo", world("dead"), actions={"heal": lambda: "rank 0 has a new process"})
    panel.show()
    recorder = panel._widget
    recorder.hear(recorder, {"kind": "press", "action": "heal", "token": "t1", "at": time.time()}, [])
    assert recorder.sent == [
        {"kind": "heard", "token": "t1"},
        {"kind": "done", "token": "t1", "text": "rank 0 has a new process", "ok": True},
    ]


def test_an_action_that_stops_the_world_cannot_answer_and_need_not(
    displays: list[tuple[bool, dict[str, str]]],
) -> None:
    panel = Panel("w", "gloo", world("idle"), actions={"stop": lambda: panel.close() or "stopped"})
    panel.show()
    recorder = panel._widget
    recorder.hear(recorder, {"kind": "press", "action": "stop", "token": "t1", "at": time.time()}, [])
    assert [message["kind"] for message in recorder.sent][:2] == ["heard", "end"]


def test_the_page_is_told_which_buttons_there_are(displays: list[tuple[bool, dict[str, str]]]) -> None:
    panel = Panel("w", "gloo", world("idle"), actions={"heal": str, "stop": str}, controls=False)
    panel.show()
    meta = panel._widget.read()["meta"]
    assert (meta["actions"], meta["controls"]) == (["heal", "stop"], False)


# ── one after the other ──


def test_a_new_panel_takes_the_places_of_an_old_one(displays: list[tuple[bool, dict[str, str]]]) -> None:
    old, new = Panel("w", "gloo", world("idle")), Panel("w", "gloo", world("idle", pid=200))
    old.show()
    old.close()
    new.replace(old)
    update, bundle = displays[-1]
    assert update
    assert f"nbcomm-world-{new.id}" in bundle["text/html"]
    assert new.display_id == old.display_id
    count = len(displays)
    old.settle()
    assert len(displays) == count  # or the old one would come back
    new.update(world("failed", pid=200))
    new.settle()
    assert len(displays) == count + 1


def test_a_panel_that_was_never_shown_leaves_no_place(displays: list[tuple[bool, dict[str, str]]]) -> None:
    Panel("w", "gloo", world("idle")).replace(Panel("w", "gloo", world("idle")))
    assert displays == []


def test_a_ladder_is_worth_a_new_table_only_when_something_is_wrong(
    displays: list[tuple[bool, dict[str, str]]],
) -> None:
    panel = Panel("w", "gloo", world("idle", "idle"))
    panel.show()
    for marks, tables in ((("done", "done"), 1), (("arrived", "missing"), 2)):
        panel.update(world("idle", "idle"), ladder=Ladder(rungs=(Rung(1, "barrier", "", marks),)))
        panel.settle()
        assert len(displays) == tables
    assert "rank 1 has not reached barrier #1" in displays[-1][1]["text/plain"]
