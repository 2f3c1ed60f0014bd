"""The panel of one world, as the notebook's kernel sees it.

A saved notebook whose output is a widget's view shows "Error displaying widget: model not found" when it is
opened without the kernel, even with a fallback beside it. So the view is never displayed. The display is a
plain table in a ``div`` with a class of its own, and the widget exists beside it without a view: its
JavaScript finds every such ``div`` in the page and draws the live panel over the table. The file on disk
contains only the table.

While a cell blocks the kernel's main thread, messages from a thread still reach the browser; messages from
the browser do not reach the kernel. So the page never asks: the kernel sends a keyframe with everything every
two seconds, and deltas between (`feed`). A click is handled when the kernel is free, or dropped (`clicks`).
"""

from __future__ import annotations

import functools
import operator
import secrets
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..analysis.story import Ladder, Past, Timeline
from ..console import write
from ..frontend.quietly import quietly
from ..frontend.viewless import close_widget, in_kernel, open_widget
from ..threads import after
from . import saved_table
from .clicks import ButtonClicks
from .feed import Feed
from .output_views import RanCell, open_views
from .words import JobView, RankView, ladder_line

_HERE = Path(__file__).parent


class Panel:
    """The panel of one world.

    `update` may be called from any thread; call the other methods on the main thread only, as for every display.

    Args:
        title: the world's title.
        backend: the process group's backend, ``"gloo"`` or ``"cpu:gloo,cuda:nccl"``.
        ranks: all ranks of the world, ascending.
        actions: the functions of its buttons, ``"interrupt"``, ``"heal"``, ``"stop"``, ``"restart"``: each runs on the
            kernel's main thread when that is free, and returns the sentence that the panel shows, or raises an error
            with it. Without actions there are no buttons.
        controls: whether the buttons are shown at first; a user of the panel can hide and show them.
        world: identifies the world: the panels of a world that another kernel takes up become live again.
        grace: seconds that the world lives on when its kernel has ended; 0 if it does not.
        ran: the last cells, oldest first; a page that has missed the output of one can ask for it.

    Attributes:
        id: identifies the panel's places in the page.
        display_id: identifies its outputs in the notebook.
        shown: whether it has an output.
    """

    def __init__(  # noqa: PLR0913  # by keyword, and each is a part of what it can do
        self,
        title: str,
        backend: str,
        ranks: Sequence[RankView],
        *,
        actions: Mapping[str, Callable[[], str]] | None = None,
        controls: bool = True,
        world: str = "",
        grace: float = 0.0,
        ran: Collection[RanCell] = (),
    ) -> None:
        self.id, self.display_id = world or secrets.token_hex(4), secrets.token_hex(4)
        self._title, self._backend = title, backend
        self._actions = dict(actions or {})
        self._ran = ran
        self._meta = {
            "id": self.id,
            "title": title,
            "backend": backend,
            "actions": [*self._actions],
            "controls": controls,
            "grace": grace,
        }
        self._feed = Feed(self._meta, ranks)
        self._lock = threading.Lock()
        self._call_off: Callable[[], None] | None = None  # cancels the message that is to be sent soon
        self._widget: Any = None
        self._close_views: Callable[[], None] | None = None
        self._stored: object = None
        self.shown = self._closed = False

    def show(self) -> None:
        """Display the panel in the running cell; the panels of several cells are all live."""
        self._open()
        _display(self._bundle(), self.display_id, update=False)
        self.shown = True

    def offer_views(self) -> None:
        """Bring to the page what it draws at cells' outputs; that needs no panel there."""
        if self._close_views is None and not self._closed and in_kernel():
            self._close_views = open_views(self._ran)

    def replace(self, old: Panel) -> None:
        """Take the places of another panel, as after a restart by its button, which has no cell for a new panel."""
        if old.shown:
            self._open()
            self.display_id, self.shown, old.shown = old.display_id, True, False
            _display(self._bundle(), self.display_id, update=True)

    def update(  # noqa: PLR0913  # each is a part of the picture
        self,
        ranks: Sequence[RankView],
        headline: str | None = None,
        *,
        ladder: Ladder | None = None,
        timeline: Timeline | None = None,
        useful: Sequence[str] | None = None,
        past: Sequence[Past] | None = None,
        job: JobView | None = None,
    ) -> None:
        """Set what the panel shows; call this from any thread, as often as you like.

        The browser gets it within 0.1 s, at most ten times a second. Call it at least every two seconds while
        the world lives, even without a change: the browser takes these calls as the kernel's sign of life.

        Args:
            ranks: all ranks of the world, ascending.
            headline: the panel's sentence; None derives it from the states, with a running clock.
            ladder: the last collectives; None keeps the previous ones, an empty `Ladder` removes them.
            timeline: the timeline of the cell that runs or ran last; None keeps the previous one. While the cell runs
                the browser gets it once a second.
            useful: the actions that would change something now; the page disables the others as long as its data is
                fresh. None means that it is not known, and every button is enabled.
            past: the cells that have ended, oldest first; None keeps the previous ones.
            job: the scheduler's job that the world is in; None keeps the previous one.
        """
        with self._lock:
            told = {"ladder": ladder, "timeline": timeline, "past": past, "job": job}
            self._feed.put(ranks, headline, None if useful is None else list(useful), **told)
            self._flush()

    @property
    def of_a_cell(self) -> bool:
        """Whether it shows something about a cell: a rank's activity, an error, a collective that went wrong."""
        with self._lock:
            shown = self._feed.picture
        return bool(ladder_line(shown.ladder)) or any(view.error or view.state != "idle" for view in shown.views)

    def settle(self) -> None:
        """Update the table in the notebook's file to the current state. Call this at the end of a cell."""
        if self.shown and self._stored != self._mark():
            _display(self._bundle(), self.display_id, update=True)

    def close(self, *, tell_page: bool = True) -> None:
        """Leave the last state of a stopped world as a table, and close the link to the browser.

        Args:
            tell_page: False while the kernel restarts: a page has forgotten the link by then, and reports a message
                for it as an error.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._call_off is not None:
                self._call_off()
            widget, self._widget = self._widget, None
            shown = self._feed.picture
            # With the world its job may have been given back: what stays counts nothing down.
            job = None if shown.job is None else shown.job._replace(ends=None)
            self._feed.put(shown.views, "stopped; this was the last state", job=job)
            last = {**self._feed.keyframe(time.time()), "kind": "end"}
        if self.shown:
            _display(self._bundle(), self.display_id, update=True)
        if not tell_page:
            return
        if widget is not None:
            quietly(widget.send, last)
            quietly(close_widget, widget)
        if self._close_views is not None:
            quietly(self._close_views)

    def _open(self) -> None:
        self.offer_views()
        if self._widget is None and not self._closed and in_kernel():
            self._widget = open_widget(_HERE / "js" / "panel.js", self._current)
            send = functools.partial(quietly, self._widget.send)
            clicks = ButtonClicks(self._actions, send)
            self._widget.on_msg(lambda _widget, content, _buffers: clicks.hear(content))

    def _flush(self) -> None:
        """Send the next message, or schedule it for when it may be sent. The caller holds the lock."""
        if self._widget is None or self._call_off is not None:
            return
        now = time.monotonic()
        wait = self._feed.wait(now)
        if wait > 0:
            self._call_off = after(wait, "nbcomm-panel", self._late)
        elif (message := self._feed.take(now, time.time())) is not None:
            quietly(self._widget.send, message)

    def _late(self) -> None:
        with self._lock:
            self._call_off = None
            self._flush()

    def _current(self) -> dict[str, Any]:
        with self._lock:  # a reload of the page reads it at any time, from any thread
            return self._feed.keyframe(time.time())

    def _bundle(self) -> dict[str, str]:
        """Return the table for the notebook's file. It has classes, not an id: JupyterLab removes ids."""
        self._stored = self._mark()
        with self._lock:
            views, headline, _, *told = self._feed.picture
        kept = dict(zip(("ladder", "timeline", "past", "job"), told, strict=True))

        def written(table: Callable[..., str]) -> str:
            return table(views, self._title, headline, **kept, backend=self._backend)

        return {
            "text/html": f'<div class="nbcomm-panel nbcomm-world-{self.id}">{written(saved_table.table_html)}</div>',
            "text/plain": written(functools.partial(saved_table.table_text, copied=True)),
        }

    def _mark(self) -> object:
        """Return the state whose change justifies a new display of the table; times and memory change all the time.

        A display costs more than all other work of the panel in a trivial cell, so memory counts in steps of a fifth.
        """
        with self._lock:
            views, headline, _, ladder, timeline, _, job = self._feed.picture
        story = saved_table.lasting(ladder, timeline)
        told = operator.attrgetter("rank", "pid", "device", "state", "note", "error")
        return headline, job, story, [(*told(view), _step(view.memory)) for view in views]


def _step(memory: int) -> int:
    """Return the memory's step, four for each doubling: the place of the highest bit, and the two bits after it."""
    return memory.bit_length() * 4 + (memory >> max(0, memory.bit_length() - 3) & 3)


def _display(bundle: dict[str, str], display_id: str, *, update: bool) -> None:
    from IPython.display import display

    if in_kernel():
        display(bundle, raw=True, display_id=f"nbcomm-{display_id}", update=update)
    elif not update:  # a terminal cannot change what it has printed
        write(sys.stdout, bundle["text/plain"] + "\n")
