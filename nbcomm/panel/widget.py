"""The panel of one world, as the notebook's kernel sees it.

A saved notebook whose output is a widget's view shows "Error displaying widget: model not found" to whoever
opens it without the kernel, whatever fallback lies beside it. So the view is never displayed. What is
displayed is a plain table in a ``div`` with a class of its own, and the widget exists beside it without a
view: its JavaScript finds every such ``div`` in the page and draws the live panel over the table. The file
on disk holds only the table.

While a cell blocks the kernel's main thread, messages from a thread still reach the browser; messages from
the browser do not reach the kernel. So the panel never asks: a keyframe with everything goes out every two
seconds, and deltas between.
"""

from __future__ import annotations

import functools
import logging
import operator
import secrets
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import static
from .static import RankView
from .views import open_views

_HERE = Path(__file__).parent
_log = logging.getLogger(__name__)

INTERVAL = 0.1
"""Seconds between two messages to the browser, at least."""

KEYFRAME = 2.0
"""Seconds after which a message carries everything again; the browser takes it as the heartbeat."""

_MEMORY_STEP = 2**20


class Feed:
    """What the browser is told and when: keyframes, and between them what has changed.

    Pure: the caller brings the time and sends what `take` returns.

    Args:
        meta: what never changes (the world's id, title, backend).
        ranks: the first state.
    """

    def __init__(self, meta: dict[str, str], ranks: Sequence[RankView]) -> None:
        self._meta = meta
        self._sent_ranks: list[tuple[Any, ...]] = []
        self._sent_rows: list[tuple[Any, ...]] = []
        self._sent_headline: str | None = None
        self._version = 0
        self._last = self._last_keyframe = float("-inf")
        self.put(ranks, None)

    def put(self, ranks: Sequence[RankView], headline: str | None) -> None:
        """Take in a new state; only the newest one will be sent."""
        self.views, self.headline = tuple(ranks), headline

    def wait(self, now: float) -> float:
        """Seconds until the next message may go; 0 or less is at once."""
        return self._last + INTERVAL - now

    def keyframe(self, wall: float) -> dict[str, Any]:
        """Everything, as of the newest state. ``wall`` is `time.time`; the browser counts on from it."""
        return {
            "kind": "snapshot",
            "version": self._version,
            "now": wall,
            "meta": self._meta,
            "headline": self.headline,
            "ranks": list(map(_fixed, self.views)),
            "rows": list(map(_row, self.views)),
        }

    def take(self, now: float, wall: float) -> dict[str, Any] | None:
        """The next message, or None when the browser knows all of it and no heartbeat is due.

        Args:
            now: `time.monotonic`; the caller has seen to it that `wait` is over.
            wall: `time.time`.
        """
        ranks, rows = list(map(_fixed, self.views)), list(map(_row, self.views))
        keyframe = now - self._last_keyframe >= KEYFRAME or ranks != self._sent_ranks
        # Where a rank has come or gone it is a keyframe, so the two lists are of one length here.
        old = zip(rows, self._sent_rows, strict=False)
        changed = {str(index): new for index, (new, sent) in enumerate(old) if new != sent}
        if not (keyframe or changed or self.headline != self._sent_headline):
            return None
        self._version += 1
        self._last = now
        self._sent_ranks, self._sent_rows, self._sent_headline = ranks, rows, self.headline
        if keyframe:
            self._last_keyframe = now
            return self.keyframe(wall)
        return {"kind": "delta", "version": self._version, "now": wall, "headline": self.headline, "rows": changed}


_fixed = operator.attrgetter("rank", "local_rank", "node_rank", "host", "device", "pid")
"""What a rank keeps as long as its process lives."""


def _row(view: RankView) -> tuple[Any, ...]:
    """What moves. Memory in whole mebibytes: it trembles by a few pages all the time, and each would be news."""
    memory, device_memory = (size // _MEMORY_STEP * _MEMORY_STEP for size in (view.memory, view.device_memory))
    return view.state, view.since, memory, device_memory, view.device_total, view.note


class Panel:
    """The panel of one world.

    `update` may be called from any thread; the others belong to the main thread, as every display does.

    Args:
        title: what the world is called.
        backend: the process group's, ``"gloo"`` or ``"cpu:gloo,cuda:nccl"``.
        ranks: all ranks of the world, ascending.
    """

    def __init__(self, title: str, backend: str, ranks: Sequence[RankView]) -> None:
        self.id = secrets.token_hex(4)
        self._title, self._backend = title, backend
        self._feed = Feed({"id": self.id, "title": title, "backend": backend}, ranks)
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._widget: Any = None
        self._close_views: Callable[[], None] = lambda: None
        self._stored: object = None
        self._shown = self._closed = False

    def show(self) -> None:
        """Display the panel in the cell that runs now; again in another cell, both are live."""
        if self._widget is None and not self._closed and _in_kernel():
            self._widget = _widget_class()(snapshot=_Current(self._current))
            self._close_views = open_views()
        _display(self._bundle(), self.id, update=False)
        self._shown = True

    def update(self, ranks: Sequence[RankView], headline: str | None = None) -> None:
        """Tell the panel what the ranks do now; from any thread, as often as you like.

        The browser hears it within 0.1 s, at most ten times a second. Call it at least every two seconds
        while the world lives, changed or not: what the browser takes for a sign of life is this call.

        Args:
            ranks: all ranks of the world, ascending.
            headline: the one sentence; None derives it from the states, with a running clock.
        """
        with self._lock:
            self._feed.put(ranks, headline)
            self._flush()

    def settle(self) -> None:
        """At the end of a cell: what the notebook's file holds becomes the current state."""
        if self._shown and self._stored != _mark(*self._newest()):
            _display(self._bundle(), self.id, update=True)

    def close(self) -> None:
        """The world is stopped: leave its last state as a table, and close the link to the browser."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._timer is not None:
                self._timer.cancel()
            widget, self._widget = self._widget, None
            self._feed.put(self._feed.views, self._feed.headline or "stopped; this was the last state")
            last = {**self._feed.keyframe(time.time()), "kind": "end"}
        if self._shown:
            _display(self._bundle(), self.id, update=True)
        if widget is not None:
            _quietly(widget.send, last)
            # Its layout is a widget of its own, which nobody else closes.
            _quietly(widget.layout.close)
            _quietly(widget.close)
            _quietly(self._close_views)

    def _flush(self) -> None:
        """Send what is due, or come back when it may go. The lock is held."""
        if self._widget is None or self._timer is not None:
            return
        now = time.monotonic()
        wait = self._feed.wait(now)
        if wait > 0:
            self._timer = threading.Timer(wait, self._late)
            self._timer.name = "nbcomm-panel"
            self._timer.daemon = True  # or a kernel that shuts down would wait for it
            self._timer.start()
        elif (message := self._feed.take(now, time.time())) is not None:
            _quietly(self._widget.send, message)

    def _late(self) -> None:
        with self._lock:
            self._timer = None
            self._flush()

    def _current(self) -> dict[str, Any]:
        return self._feed.keyframe(time.time())

    def _newest(self) -> tuple[tuple[RankView, ...], str | None]:
        with self._lock:
            return self._feed.views, self._feed.headline

    def _bundle(self) -> dict[str, str]:
        """The table as the notebook's file keeps it. Classes, not an id: JupyterLab takes ids away."""
        views, headline = self._newest()
        self._stored = _mark(views, headline)
        table = static.table_html(views, self._title, headline, backend=self._backend)
        return {
            "text/html": f'<div class="nbcomm-panel nbcomm-world-{self.id}">{table}</div>',
            "text/plain": static.table_text(views, self._title, headline, backend=self._backend),
        }


def _mark(views: Sequence[RankView], headline: str | None) -> object:
    """What makes a new table worth its display; times move all the time, and memory by itself.

    A display costs more than all else that the panel does in a trivial cell, so memory counts in steps of a fifth.
    """
    return headline, [(view.rank, view.pid, view.device, view.state, view.note, _step(view.memory)) for view in views]


def _step(memory: int) -> int:
    """Four steps for each doubling: the place of the highest bit, and the two bits after it."""
    return memory.bit_length() * 4 + (memory >> max(0, memory.bit_length() - 3) & 3)


class _Current:
    """The value of the widget's one trait: whoever reads the widget's state gets the state of now."""

    def __init__(self, read: Callable[[], dict[str, Any]]) -> None:
        self.read = read


@functools.cache
def _widget_class() -> type[Any]:
    """The widget without a view. Made late: anywidget takes longer to import than all of nbcomm."""
    import anywidget
    import traitlets

    class PanelWidget(anywidget.AnyWidget):
        _esm = (_HERE / "panel.js").read_text(encoding="utf-8")
        _css = (_HERE / "panel.css").read_text(encoding="utf-8")
        # Sent when the widget opens and when a reloaded page asks for all widgets; never on change.
        snapshot = traitlets.Instance(_Current).tag(sync=True, to_json=lambda current, _widget: current.read())

    return PanelWidget


def _in_kernel() -> bool:
    from IPython.core.getipython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None


def _display(bundle: dict[str, str], display_id: str, *, update: bool) -> None:
    from IPython.display import display

    if _in_kernel():
        display(bundle, raw=True, display_id=f"nbcomm-{display_id}", update=update)
    elif not update:  # a terminal cannot take back what it has printed
        sys.stdout.write(bundle["text/plain"] + "\n")


def _quietly(call: Callable[..., object], *args: object) -> None:
    """Call it; a kernel that is shutting down has no link any more, and that is nobody's error."""
    try:
        call(*args)
    except Exception:  # noqa: BLE001  # which one depends on how far the shutdown has come
        _log.debug("The panel could not reach the browser.", exc_info=True)
