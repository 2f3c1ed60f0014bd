"""When the panel speaks to the browser, and what it leaves in the notebook's file."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

from nbcomm.panel import Panel, RankView, widget
from nbcomm.panel.widget import Feed

META = {"id": "ab", "title": "w", "backend": "gloo"}


def world(*states: str, pid: int = 100, memory: int = 0, since: float = 5.0) -> list[RankView]:
    return [RankView(i, pid=pid + i, state=state, since=since, memory=memory) for i, state in enumerate(states)]


# ── the feed: pure, with the test's own clock ──


def test_the_first_message_is_a_keyframe_with_everything() -> None:
    feed = Feed(META, world("idle", "running"))
    assert feed.take(0.0, wall=1000.0) == {
        "kind": "snapshot",
        "version": 1,
        "now": 1000.0,
        "meta": META,
        "headline": None,
        "ranks": [(0, 0, 0, "", "cpu", 100), (1, 0, 0, "", "cpu", 101)],
        "rows": [("idle", 5.0, 0, 0, 0, ""), ("running", 5.0, 0, 0, 0, "")],
    }


def test_then_only_what_changed() -> None:
    feed = Feed(META, world("idle", "idle"))
    feed.take(0.0, wall=1000.0)
    feed.put(world("idle", "running"), None)
    message = feed.take(0.2, wall=1000.2)
    assert message is not None
    assert (message["kind"], message["version"], list(message["rows"])) == ("delta", 2, ["1"])
    assert feed.take(0.4, wall=1000.4) is None


def test_a_new_headline_alone_is_news_and_so_is_its_end() -> None:
    feed = Feed(META, world("idle"))
    feed.take(0.0, wall=0.0)
    feed.put(world("idle"), "healing rank 0")
    message = feed.take(0.2, wall=0.0)
    assert message is not None
    assert message["headline"] == "healing rank 0"
    assert message["rows"] == {}
    feed.put(world("idle"), None)
    assert feed.take(0.4, wall=0.0) is not None


def test_a_keyframe_every_two_seconds_even_with_no_news() -> None:
    feed = Feed(META, world("idle"))
    kinds = [message and message["kind"] for message in (feed.take(tick / 10, wall=0.0) for tick in range(45))]
    assert [tick for tick, kind in enumerate(kinds) if kind] == [0, 20, 40]
    assert set(kinds) == {None, "snapshot"}


def test_a_new_process_needs_a_keyframe_at_once() -> None:
    feed = Feed(META, world("dead"))
    feed.take(0.0, wall=0.0)
    feed.put(world("idle", pid=200), None)
    message = feed.take(0.2, wall=0.0)
    assert message is not None
    assert message["kind"] == "snapshot"


def test_a_trembling_memory_is_no_news() -> None:
    feed = Feed(META, world("idle", memory=300 << 20))
    feed.take(0.0, wall=0.0)
    feed.put(world("idle", memory=(300 << 20) + 8192), None)
    assert feed.take(0.2, wall=0.0) is None


def test_never_more_than_ten_messages_a_second() -> None:
    feed = Feed(META, world("idle"))
    sent = []
    for tick in range(1000):  # a watcher that runs wild, at 1 kHz
        now = tick / 1000
        feed.put(world("idle", since=now), None)
        if feed.wait(now) <= 0 and feed.take(now, wall=0.0):
            sent.append(now)
    assert len(sent) == 10


# ── the panel: with a widget and a display that only write down ──


class Recorder:
    """Stands for the widget; `sent` grows with each message, and `news` tells of it."""

    def __init__(self, snapshot: Any) -> None:
        self.snapshot = snapshot
        self.sent: list[dict[str, Any]] = []
        self.news = threading.Semaphore(0)
        self.layout = self
        self.closed = 0

    def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)
        self.news.release()

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def displays(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, dict[str, str]]]:
    shown: list[tuple[bool, dict[str, str]]] = []
    monkeypatch.setattr(widget, "_in_kernel", lambda: True)
    monkeypatch.setattr(widget, "_widget_class", lambda: Recorder)
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
    assert panel._widget.snapshot.read()["rows"][0][0] == "running"


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
    assert capsys.readouterr().out.startswith("w · 1 rank on 1 node · gloo\n1 rank idle\nrank ")


def test_importing_the_panel_imports_no_widgets_and_no_torch() -> None:
    code = "import sys, nbcomm.panel; print(sorted({'torch', 'anywidget', 'ipywidgets', 'IPython'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
