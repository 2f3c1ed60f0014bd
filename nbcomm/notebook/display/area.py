"""Where a cell's output is shown: under a Jupyter cell, or in a terminal.

An area belongs to the cell that ran when `current_area` was called. What is written to it later, from any thread, still
appears there; `print` would write to the cell that runs then.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Protocol

from ...console import write
from .frontends import shows_updates


class Area(Protocol):
    """A place for output. Its methods may be called from any thread, by one thread at a time.

    Attributes:
        updates: whether a display can be replaced in place and the area can be cleared.
        comms: whether there may be a page with widgets.
    """

    updates: bool
    comms: bool

    def stream(self, name: str, text: str) -> None:
        """Show text as written to "stdout" or "stderr"."""

    def display(self, data: dict[str, Any], metadata: dict[str, Any], display_id: str = "") -> None:
        """Show a MIME bundle, so that it can be updated if there is a ``display_id``."""

    def update(self, data: dict[str, Any], metadata: dict[str, Any], display_id: str) -> None:
        """Replace what is shown under the ``display_id``."""

    def clear(self, *, wait: bool) -> None:
        """Remove all output; with ``wait``, when the next output comes."""

    def comm(self, kind: str, content: dict[str, Any], metadata: dict[str, Any], buffers: Sequence[bytes]) -> None:
        """Send a comm's message: "open", "msg" or "close"."""


class JupyterArea:
    """The output of the cell that runs now in this ipykernel.

    Messages are sent with the cell's own parent header, as ipykernel's publisher does it. ``sys.stdout`` and
    ``display`` would look the header up too late: since ipykernel 7 a thread without a context of its own gets that of
    the cell which runs then.
    """

    comms = True

    def __init__(self, publisher: Any) -> None:
        self.updates = shows_updates()
        self._session = publisher.session
        self._socket = publisher.pub_socket
        self._parent = dict(publisher.parent_header)
        # What the notebook's own code has printed so far is still in a buffer, and must come first.
        for stream in (sys.stdout, sys.stderr):
            # A flush waits for ipykernel's output thread, half a millisecond: skip it if nothing is buffered.
            if getattr(stream, "_flush_pending", True):
                stream.flush()

    def stream(self, name: str, text: str) -> None:
        """Show text as written to "stdout" or "stderr"."""
        self._send("stream", {"name": name, "text": text}, f"stream.{name}")

    def display(self, data: dict[str, Any], metadata: dict[str, Any], display_id: str = "") -> None:
        """Show a MIME bundle."""
        self._show("display_data", data, metadata, display_id)

    def update(self, data: dict[str, Any], metadata: dict[str, Any], display_id: str) -> None:
        """Replace what is shown under the ``display_id``; if nothing can be replaced, show the new value below."""
        if self.updates:
            self._show("update_display_data", data, metadata, display_id)
        elif data:
            self._show("display_data", data, metadata, "")

    def clear(self, *, wait: bool) -> None:
        """Remove all output."""
        self._send("clear_output", {"wait": wait}, "display_data")

    def comm(self, kind: str, content: dict[str, Any], metadata: dict[str, Any], buffers: Sequence[bytes]) -> None:
        """Send a comm's message."""
        topic = f"comm-{content['comm_id']}"
        self._send(f"comm_{kind}", content, topic, metadata=metadata, buffers=buffers)

    def _show(self, kind: str, data: dict[str, Any], metadata: dict[str, Any], display_id: str) -> None:
        from ipykernel.jsonutil import encode_images

        transient = {"display_id": display_id} if display_id else {}
        self._send(kind, {"data": encode_images(data), "metadata": metadata, "transient": transient}, "display_data")

    def _send(
        self,
        kind: str,
        content: dict[str, Any],
        topic: str,
        metadata: dict[str, Any] | None = None,
        buffers: Sequence[bytes] = (),
    ) -> None:
        from ipykernel.jsonutil import json_clean

        message = self._session.msg(kind, json_clean(content), parent=self._parent, metadata=metadata)
        # The socket is ipykernel's queue to its output thread: safe from any thread, in order.
        self._session.send(self._socket, message, ident=topic.encode(), buffers=[*buffers])


class TerminalArea:
    """Standard output as it is now, for IPython in a terminal, plain Python, and captured output.

    Nothing is updated in place. Rich displays go through IPython if it is there.
    """

    updates = comms = False

    def __init__(self, shell: Any = None) -> None:
        self._streams = {"stdout": sys.stdout, "stderr": sys.stderr}
        # Looked up now: inside a `capture_output` block it is the block's own publisher.
        self._publisher = None if shell is None else shell.display_pub

    def stream(self, name: str, text: str) -> None:
        """Show text as written to "stdout" or "stderr"."""
        stream = self._streams[name]
        write(stream, text)
        stream.flush()

    def display(self, data: dict[str, Any], metadata: dict[str, Any], display_id: str = "") -> None:
        """Show a MIME bundle."""
        if not data:
            return
        if self._publisher is not None:
            transient = {"display_id": display_id} if display_id else {}
            self._publisher.publish(data=data, metadata=metadata, transient=transient)
        else:
            self.stream("stdout", f"{data.get('text/plain', '<' + ', '.join(data) + '>')}\n")

    def update(self, data: dict[str, Any], metadata: dict[str, Any], display_id: str) -> None:  # noqa: ARG002
        """Show the new value: the old one stays where it is."""
        if data:
            self.display(data, metadata)

    def clear(self, *, wait: bool) -> None:
        """Keep all output: a terminal cannot remove it."""

    def comm(self, kind: str, content: dict[str, Any], metadata: dict[str, Any], buffers: Sequence[bytes]) -> None:
        """Drop the message: there is no page."""


def current_area() -> Area:
    """Return the area of the cell that runs now; must be called on the thread that runs it."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None:
        return TerminalArea()
    iostream = sys.modules.get("ipykernel.iostream")
    publisher = shell.display_pub
    # Both are replaced while output is captured (%%capture, redirect_stdout); then output must go there.
    if (
        iostream is not None
        and isinstance(sys.stdout, iostream.OutStream)
        and all(hasattr(publisher, name) for name in ("session", "pub_socket", "parent_header"))
    ):
        return JupyterArea(publisher)
    return TerminalArea(shell)
