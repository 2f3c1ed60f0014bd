"""Comms that a cell's code opens on a rank: widgets use them to talk to the notebook's page.

A comm's messages are sent with the cell's output, in order, and not to ipyparallel's client; the page's messages are
handled on the main loop between cells. Code that belongs to no cell of nbcomm keeps ipykernel's comms.

A page that shows an Output widget would look for printed text in messages that never reach it. So what is printed into
such a widget is collected here (`output_widget`), and sent as the widget's state.
"""

from __future__ import annotations

import re
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import comm
import msgspec
from comm.base_comm import BaseComm

from ...protocol import CommFromRank, CommToRank
from .capture import Capture
from .output_widget import Outlet, plain

_PROTOCOL = "2.1.0"
"""The version of the widget protocol: ipywidgets 8 and anywidget use it."""

_REFERENCE = re.compile(r"IPY_MODEL_(\w+)")
_OUTPUT = ("@jupyter-widgets/output", "OutputModel")
_LIVE_INTERVAL = 0.1
_CHARS_PER_SECOND = 250_000  # of a widget's outputs that grow while it is open: each time all of them are sent


class Comms:
    """The comms of one rank's cells.

    Args:
        capture: where they publish.
        kernel: the engine's.
    """

    def __init__(self, capture: Capture, kernel: Any) -> None:
        self.capture = capture
        self.kernel = kernel
        self._heard: deque[CommToRank] = deque()
        self._mergeable = False
        self._lock = threading.Lock()
        self._theirs: Callable[..., Any] = comm.create_comm

    def install(self) -> None:
        """Give code that belongs to a cell comms of this kind, from now on."""
        comm.create_comm = self.create

    def create(self, *args: Any, **kwargs: Any) -> Any:
        """Create a comm, as `comm.create_comm` does."""
        run = self.capture.attribution()
        if run is None or self.capture.in_child:
            return self._theirs(*args, **kwargs)
        return RankComm(self, run, *args, **kwargs)

    def names(self) -> list[str]:
        """Return the ids of the open comms."""
        return [name for name, found in self._manager.comms.items() if isinstance(found, RankComm)]

    @property
    def _manager(self) -> Any:
        return comm.get_comm_manager()

    def tell_again(self) -> None:
        """Open all widgets once more, for a notebook that does not know them; on the main thread."""
        told: set[str] = set()
        for name in self.names():
            self._tell_again(name, told)

    def _tell_again(self, name: str, told: set[str]) -> None:
        found = self._manager.comms.get(name)
        if name in told or not isinstance(found, RankComm) or not hasattr(found.owner, "get_state"):
            return
        told.add(name)
        try:
            state, paths, buffers = _apart(found.owner.get_state())
        except Exception:  # noqa: BLE001 - a state that cannot be read is missing, and no more than that
            return
        for other in _REFERENCE.findall(str(state)):  # a page must know what a widget refers to
            self._tell_again(other, told)
        if "msg_id" in state:
            state["msg_id"] = ""
        data = {"state": plain(state), "buffer_paths": paths}
        found.say("open", data, {"version": _PROTOCOL}, found.target_name, buffers)

    # ── messages from the page ──────────────────────────────────────────────────────────────────────────

    def put(self, heard: CommToRank) -> bool:
        """Queue a message of the page; on the link's thread.

        A slider that is dragged while the rank is busy sends many messages: of consecutive ones for one widget, only
        the last values count.

        Returns:
            Whether the queue has one more message.
        """
        with self._lock:
            last = self._heard[-1] if self._heard and self._mergeable else None
            self._mergeable = True
            if last is not None and last.comm == heard.comm and _is_update(last) and _is_update(heard):
                state = {**last.data.get("state", {}), **heard.data.get("state", {})}
                self._heard[-1] = msgspec.structs.replace(last, data={**last.data, "state": state})
                return False
            self._heard.append(heard)
            return True

    def fence(self) -> None:
        """Keep later messages separate from those in the queue: they are to be handled after something else."""
        with self._lock:
            self._mergeable = False

    def handle(self) -> None:
        """Handle the oldest message; on the main thread. Errors are shown by the comm's cell."""
        with self._lock:
            heard = self._heard.popleft()
        found = self._manager.comms.get(heard.comm)
        if not isinstance(found, RankComm):
            return  # it was closed meanwhile, or belongs to the process that had this rank before
        content = {"comm_id": heard.comm, "data": heard.data}
        header = {"msg_id": f"nbcomm-{heard.comm}", "msg_type": f"comm_{heard.kind}"}
        buffers = [memoryview(buffer) for buffer in heard.buffers]
        message = {"header": header, "metadata": heard.metadata, "content": content, "buffers": buffers}
        with self.capture.on_behalf_of(found.run):
            try:
                if heard.kind == "close":
                    self._manager.comm_close(None, None, message)
                else:
                    found.handle_msg(message)
            except KeyboardInterrupt:
                sys.stderr.write("KeyboardInterrupt\n")
            except BaseException as error:  # noqa: BLE001 - it is the user's, and shown; sys.exit() would end the rank
                sys.stderr.write("".join(traceback.format_exception(error)))


def _apart(state: dict[str, Any]) -> tuple[dict[str, Any], list[list[Any]], list[bytes]]:
    """Split a state into a state without its binary parts, their paths, and the parts."""
    paths: list[list[Any]] = []
    buffers: list[bytes] = []

    def walk(value: Any, path: list[Any]) -> Any:
        if isinstance(value, dict):
            return {key: walk(part, [*path, key]) for key, part in value.items() if not keep(part, [*path, key])}
        if isinstance(value, list | tuple):
            return [None if keep(part, [*path, i]) else walk(part, [*path, i]) for i, part in enumerate(value)]
        return value

    def keep(value: Any, path: list[Any]) -> bool:
        if not isinstance(value, bytes | bytearray | memoryview):
            return False
        paths.append(path)
        buffers.append(bytes(value))
        return True

    return walk(state, []), paths, buffers


def _is_update(heard: CommToRank) -> bool:
    return heard.kind == "msg" and heard.data.get("method") == "update" and not heard.buffers


class RankComm(BaseComm):
    """A comm that a cell has opened.

    Attributes:
        run: the cell run.
        owner: the widget that uses it, once that is known.
        kernel: some libraries send nothing through a comm that has none.
    """

    def __init__(self, comms: Comms, run: int, *args: Any, **kwargs: Any) -> None:
        self.run = run
        self.owner: Any = None
        self.kernel = comms.kernel
        self._comms = comms
        self._is_output = False
        self._outlet: _WidgetOutlet | None = None
        super().__init__(*args, **kwargs)

    def on_msg(self, callback: Callable[[dict[str, Any]], None] | None) -> None:
        """Register a callback for the page's messages; of a widget, it is one of its methods."""
        super().on_msg(callback)
        self.owner = getattr(callback, "__self__", None)

    def publish_msg(
        self,
        msg_type: str,
        data: dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
        buffers: list[bytes] | None = None,
        **keys: Any,
    ) -> None:
        """Pass a message to the capture."""
        capture = self._comms.capture
        if capture.in_child:
            return  # a forked child's copy: the widget belongs to its parent
        kind, said = msg_type.removeprefix("comm_"), dict(data or {})
        method = said.get("method")
        if method == "echo_update":
            return  # the notebook's half echoes the page's messages as soon as it receives them
        state = said.get("state")
        if kind == "open" and isinstance(state, dict):
            self._is_output = (state.get("_model_module"), state.get("_model_name")) == _OUTPUT
        if self._is_output and isinstance(state, dict) and "msg_id" in state:
            said["state"] = {**state, "msg_id": ""}
            if method == "update":
                state = said["state"] = {name: value for name, value in state.items() if name != "msg_id"}
                self._redirect(into=bool((data or {})["state"]["msg_id"]))
                if not state:
                    return
        raw = [bytes(buffer) for buffer in buffers or ()]
        self.say(kind, plain(said), plain(metadata or {}), str(keys.get("target_name") or ""), raw)

    def say(
        self,
        kind: str,
        data: dict[str, Any],
        metadata: dict[str, Any] | None = None,
        target: str = "",
        buffers: list[bytes] | None = None,
    ) -> None:
        """Send the page a message, for the cell whose code runs, or else for the comm's own."""
        capture = self._comms.capture
        run = capture.attribution() or self.run
        late = capture.is_late(run)
        capture.tell(run, CommFromRank(kind, self.comm_id, data, metadata or {}, target, buffers or [], late))

    @property
    def outlet(self) -> Outlet | None:
        """The outlet of an open Output widget that the comm speaks for; None for others."""
        return self._outlet

    def _redirect(self, *, into: bool) -> None:
        """Begin or stop collecting what this context shows in the widget."""
        outlet, self._outlet = self._outlet, None
        if outlet is not None:
            outlet.close()
        if into and self.owner is not None:
            self._outlet = _WidgetOutlet(self)
            self._outlet.open()


class _WidgetOutlet(Outlet):
    """What is shown inside ``with output:``, on its way to the widget's ``outputs``."""

    def __init__(self, spoken_by: RankComm) -> None:
        self._comm = spoken_by
        self._capture = spoken_by._comms.capture  # noqa: SLF001 - of this module
        self._due = time.monotonic() + _LIVE_INTERVAL
        self._shown = 0
        super().__init__(spoken_by.owner.outputs)

    def open(self) -> None:
        super().open()
        with self._capture.lock:
            self._capture.followers.append(self._show)

    def close(self) -> None:
        with self._capture.lock, suppress(ValueError):  # what it sends on the link's thread must not come last
            super().close()
            self._capture.followers.remove(self._show)
        if self.changes:
            # Through the trait, so that the program, too, finds its output there.
            self._comm.owner.outputs = tuple(self.outputs)

    def _show(self) -> None:
        """Send the page the outputs so far; called now and then while the widget is open."""
        now = time.monotonic()
        if self.changes == self._shown or now < self._due:
            return
        self._shown = self.changes
        outputs = self.outputs
        size = sum(len(str(output.get("text", ""))) for output in outputs)
        self._due = now + max(_LIVE_INTERVAL, size / _CHARS_PER_SECOND)
        self._comm.say("msg", {"method": "update", "state": {"outputs": outputs}, "buffer_paths": []})
