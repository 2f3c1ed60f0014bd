"""The notebook's end of a comm that a rank has opened; see `mirrors`, which imports this for the first one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import comm
import ipywidgets
import traitlets
from comm.base_comm import BaseComm

from ...frontend.quietly import quietly
from ...protocol import CommFromRank, CommToRank
from ..display.area import Area, current_area

Tell = Callable[[int, CommToRank], None]
"""Sends a message to a rank."""

OnClosed = Callable[[str], None]
"""Called with the id of a comm that has closed."""


class CommEnd(BaseComm):
    """One comm."""

    def __init__(self, tell: Tell, on_closed: OnClosed, rank: int, area: Area, item: CommFromRank) -> None:
        super().__init__(target_name=item.target, comm_id=item.comm, primary=False)
        self._tell, self._on_closed, self.rank, self.area = tell, on_closed, rank, area
        self._closed = True  # until it is opened

    def note(self, item: CommFromRank) -> None:
        """Keep a message of the rank; here it has no state to keep."""

    def publish_msg(
        self,
        msg_type: str,
        data: dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
        buffers: Sequence[bytes] | None = None,
        **keys: Any,
    ) -> None:
        """Send a message with the header of the cell, in order with the cell's output."""
        content = {"data": data or {}, "comm_id": self.comm_id, **keys}
        kind = msg_type.removeprefix("comm_")
        quietly(self.area.comm, kind, content, metadata or {}, buffers or ())

    def handle_msg(self, msg: dict[str, Any]) -> None:
        """Pass a message of the page on to the rank."""
        self._pass_on("msg", msg)

    def handle_close(self, msg: dict[str, Any]) -> None:
        """Tell the rank that the page has closed the comm."""
        self._pass_on("close", msg)
        self.retire()
        self._on_closed(self.comm_id)

    def _pass_on(self, kind: str, msg: dict[str, Any]) -> None:
        data, buffers = msg["content"].get("data", {}), [bytes(buffer) for buffer in msg.get("buffers", ())]
        self._tell(self.rank, CommToRank(kind, self.comm_id, data, msg.get("metadata", {}), buffers))

    def close(self, *args: Any, **kwargs: Any) -> None:
        """Close the comm in the page."""
        if not self._closed:
            super().close(*args, **kwargs)
            self._on_closed(self.comm_id)

    def retire(self) -> None:
        """Forget the comm here, and leave it in the page as it looks."""
        self._closed = True
        comm.get_comm_manager().comms.pop(self.comm_id, None)


class WidgetCommEnd(CommEnd):
    """The comm of a widget."""

    def __init__(self, tell: Tell, on_closed: OnClosed, rank: int, area: Area, item: CommFromRank) -> None:
        super().__init__(tell, on_closed, rank, area, item)
        self.state = _with_buffers(item.data.get("state", {}), item)
        self.widget = Mirror(self)

    def note(self, item: CommFromRank) -> None:
        """Keep the new values."""
        self.state = {**self.state, **_with_buffers(item.data.get("state", {}), item)}

    def handle_msg(self, msg: dict[str, Any]) -> None:
        """Pass a message of the page on to the rank; a request for the state is answered here."""
        data = msg["content"]["data"]
        if data.get("method") == "request_state":  # the rank may be busy, or dead
            self.widget.send_state()
            return
        self._pass_on("msg", msg)
        if data.get("method") == "update":
            state = data.get("state", {})
            raw = [bytes(buffer) for buffer in msg.get("buffers", ())]
            self.note(CommFromRank("msg", self.comm_id, data, buffers=raw))
            if not raw:
                self._echo(state)

    def handle_close(self, msg: dict[str, Any]) -> None:  # noqa: ARG002 - as the base class has it
        """Stay open: a page that does not support widgets closes each one, and another page may show it."""
        self._closed = False
        comm.get_comm_manager().comms[self.comm_id] = self

    def _echo(self, state: dict[str, Any]) -> None:
        """Send other pages what this one has set; this one waits for the echo of its own message."""
        area = current_area()
        said = {"method": "echo_update", "state": state, "buffer_paths": []}
        content = {"data": said, "comm_id": self.comm_id}
        quietly((area if area.comms else self.area).comm, "msg", content, {}, ())

    def close(self, *args: Any, **kwargs: Any) -> None:
        """Close the comm in the page, and as a widget."""
        super().close(*args, **kwargs)
        self.widget.retire()

    def retire(self) -> None:
        """Forget the comm here, also as a widget."""
        super().retire()
        self.widget.retire()


class Mirror(ipywidgets.Widget):  # type: ignore[misc]  # it has no types
    """A widget of a rank: it has the rank's state, and sends nothing by itself."""

    comm: Any
    _model_name = traitlets.Unicode().tag(sync=True)
    _model_module = traitlets.Unicode().tag(sync=True)
    _model_module_version = traitlets.Unicode().tag(sync=True)
    _view_name = traitlets.Unicode(None, allow_none=True).tag(sync=True)

    def __init__(self, end: WidgetCommEnd) -> None:
        self._end = end
        names = ("_model_name", "_model_module", "_model_module_version", "_view_name")
        super().__init__(comm=end, **{name: end.state[name] for name in names if name in end.state})

    @property
    def model_id(self) -> str:
        """The rank's id of it, also when it has closed: a parent that holds it may still ask."""
        return str(self._end.comm_id)

    def get_state(self, key: Any = None, drop_defaults: bool = False) -> dict[str, Any]:  # noqa: ARG002, FBT001, FBT002
        """Return the whole state for any request: the rank has sent nothing more."""
        return dict(self._end.state)

    def notify_change(self, change: Any) -> None:
        """Notify observers, but not the page."""
        traitlets.HasTraits.notify_change(self, change)

    def _handle_msg(self, msg: Any) -> None:
        """Do nothing: the comm handles messages."""

    def close(self) -> None:
        """Close the widget in the page; the rank is not told."""
        end = self.comm
        if end is not None:
            end.close()

    def retire(self) -> None:
        """Leave the notebook's widgets."""
        end, self.comm = self.comm, None
        if end is not None:
            ipywidgets.widgets.widget._instances.pop(end.comm_id, None)  # noqa: SLF001 - `Widget.close` does no more


def _with_buffers(state: dict[str, Any], item: CommFromRank) -> dict[str, Any]:
    """Return a state with its binary parts in their places."""
    state = dict(state)
    for path, buffer in zip(item.data.get("buffer_paths", ()), item.buffers, strict=False):
        place: Any = state
        for key in path[:-1]:
            # The message itself is not changed.
            inner = place[key]
            place[key] = inner = dict(inner) if isinstance(inner, dict) else list(inner)
            place = inner
        place[path[-1]] = buffer
    return state
