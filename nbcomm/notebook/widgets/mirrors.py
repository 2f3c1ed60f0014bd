"""Widgets that live on ranks, as the notebook's kernel and its page see them.

A page knows a widget by the id of its comm, and asks the kernel for all widgets when it is loaded. So each comm that a
rank opens has an end here with the same id. The rank's messages are kept and passed on to the page, the page's messages
are passed on to the rank. For a widget this end is a real `ipywidgets.Widget`: functions that list widgets find it,
and a widget made here can have it as a child.

All of it may be called from any thread: the rank's messages come on the link's, the page's on the kernel's main thread,
or on a subshell's while that is busy.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from ...frontend.quietly import quietly
from ...protocol import CommFromRank, CommToRank, Item
from ...threads import after
from ..display.area import Area, current_area

if TYPE_CHECKING:
    from .comm_ends import CommEnd

_MOST = 10_000
"""Widgets that are kept; ipywidgets gives each two more, for its layout and its style. Beyond, the oldest stay in the
page as they look, but not when it is loaded again."""

_BLOCKS = 500
"""Blocks whose widgets are drawn; older ones are text."""

_A_SECOND, _AT_ONCE = 400, 800
"""Messages to the page: a Jupyter server drops messages above 1,000 a second."""

_HELD = 0.1
"""Seconds for which values beyond that rate are held back."""

_log = logging.getLogger(__name__)


class Shown(Protocol):
    """A place in the page that shows widgets; see `rows.WidgetRows`."""

    def drop(self, model: str) -> None:
        """Remove the widget of this id: it has closed."""

    def leave(self, area: Area | None = None) -> None:
        """Show text in place of the widgets: all are about to close."""


class Mirrors:
    """The notebook's ends of the comms of one world.

    Args:
        tell: sends a message to a rank.
        clock: the time in seconds, for tests.
    """

    def __init__(self, tell: Callable[[int, CommToRank], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._tell = tell
        self._clock = clock
        self._home = current_area()
        self._ends: OrderedDict[str, CommEnd] = OrderedDict()
        self._blocks: list[Shown] = []
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._held: dict[str, dict[str, Any]] = {}
        self._room, self._since = float(_AT_ONCE), clock()
        self._call_off: Callable[[], None] | None = None  # calls off the planned release
        self._closed = False
        self._lock = threading.RLock()

    # ── messages from ranks ─────────────────────────────────────────────────────────────────────────────

    def hear(self, rank: int, items: list[Item], area: Area | None) -> list[Item]:
        """Handle the messages of a rank's comms, at once: a display that follows may show them. Return all other items.

        Args:
            rank: the sender.
            items: what it has shown.
            area: of the cell that it belongs to; None if that is not known any more.
        """
        if not any(isinstance(item, CommFromRank) for item in items):
            return items
        area = area if area is not None and area.comms else self._home
        for item in items:
            if isinstance(item, CommFromRank) and not area.comms:
                if item.kind == "close":
                    self.note_closed(item.comm)
            elif isinstance(item, CommFromRank):
                try:
                    self._hear(rank, item, area)
                except Exception:  # noqa: BLE001 - what a widget is made of is the user's; the link goes on
                    _log.warning("A widget of rank %d could not be shown.", rank, exc_info=True)
        return [item for item in items if not isinstance(item, CommFromRank)]

    def _hear(self, rank: int, item: CommFromRank, area: Area) -> None:
        with self._lock:
            if self._closed:
                return
            end = self._ends.get(item.comm)
            if end is None:
                if item.kind == "open":
                    self._open(rank, item, area)
                return
            end.area = area
            update = item.kind == "msg" and item.data.get("method") == "update"
            if item.kind == "open":  # the rank repeats it, to a notebook that may not have received it
                end.note(item)
                item = CommFromRank("msg", item.comm, {"method": "update", **item.data}, buffers=item.buffers)
            elif item.kind == "close":
                self.release()
                end.close(item.data, item.metadata, item.buffers)
                return
            elif update:
                end.note(item)
            if update and not item.buffers and (item.comm in self._held or not self._has_room()):
                self._hold(item)
                return
            self.release()
            end.send(item.data, item.metadata, item.buffers)

    def _open(self, rank: int, item: CommFromRank, area: Area) -> None:
        self.release()
        from .comm_ends import CommEnd, WidgetCommEnd  # with ipywidgets, which takes long to import

        kind = WidgetCommEnd if item.target == "jupyter.widget" and "state" in item.data else CommEnd
        end = self._ends[item.comm] = kind(self._tell, self.note_closed, rank, area, item)
        end.open(item.data, item.metadata, item.buffers)
        while len(self._ends) > _MOST:
            self._ends.popitem(last=False)[1].retire()

    def note_closed(self, comm: str) -> None:
        """Remove the rows of a closed widget, wherever it is shown."""
        with self._lock:
            self._gone[comm] = None
            while len(self._gone) > _MOST:
                self._gone.popitem(last=False)
            self._ends.pop(comm, None)
            self._held.pop(comm, None)
            for block in [*self._blocks]:
                block.drop(comm)

    # ── not too many at once ────────────────────────────────────────────────────────────────────────

    def _has_room(self) -> bool:
        now = self._clock()
        self._room, self._since = min(self._room + _A_SECOND * (now - self._since), _AT_ONCE), now
        self._room -= 1
        return self._room >= 0

    def _hold(self, item: CommFromRank) -> None:
        self._held.setdefault(item.comm, {}).update(item.data.get("state", {}))
        if self._call_off is None:
            self._call_off = after(_HELD, "nbcomm-widgets", self.release)

    def release(self) -> None:
        """Send what was held back: the last values of each widget."""
        with self._lock:
            call_off, self._call_off = self._call_off, None
            while self._held:  # one by one: if one cannot be sent, only that one is lost
                comm = next(iter(self._held))
                state = self._held.pop(comm)
                end = self._ends.get(comm)
                if end is not None:
                    end.send({"method": "update", "state": state, "buffer_paths": []})
            if call_off is not None:
                call_off()

    # ── what is known of them ───────────────────────────────────────────────────────────────────────

    def widget(self, comm: str) -> Any:
        """Return the widget of this id; None if there is none."""
        end = self._ends.get(comm)
        return getattr(end, "widget", None)

    def state(self, comm: str) -> dict[str, Any]:
        """Return a widget's state; empty if there is no such widget."""
        end = self._ends.get(comm)
        return dict(getattr(end, "state", {}))

    def kind(self, comm: str) -> str:
        """Return a widget's kind, "HBoxModel"; empty if that is not known."""
        return str(self.state(comm).get("_model_name") or "")

    def has_closed(self, comm: str) -> bool:
        """Return whether a widget has been closed, by its rank or here."""
        return comm in self._gone

    def keep(self, block: Shown) -> None:
        """Register a block, which is called when a widget closes."""
        with self._lock:
            self._blocks.append(block)
            while len(self._blocks) > _BLOCKS:
                quietly(self._blocks.pop(0).leave)

    def forget(self, block: Shown) -> None:
        """Forget a block that is no longer on the screen."""
        with self._lock:
            if block in self._blocks:
                self._blocks.remove(block)

    def close(self) -> None:
        """Show text in place of all widgets, and close them: the world is left."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._call_off is not None:
                self._call_off()
            area = current_area()
            for block in [*self._blocks]:
                quietly(block.leave, area)
            self._blocks.clear()
            for end in [*self._ends.values()]:
                quietly(end.close)
