"""The messages with a cell's output: text, displays, results, and messages of its widgets."""

from __future__ import annotations

from typing import Any

import msgspec


class Text(msgspec.Struct, tag="t", array_like=True, frozen=True):
    """Text written to ``stream`` ("stdout" or "stderr"), of any length, in the order it was written.

    ``late``: a background thread wrote it after its cell had ended.
    """

    stream: str
    text: str
    late: bool = False


class Display(msgspec.Struct, tag="d", array_like=True, frozen=True):
    """A display: a MIME bundle. With ``update`` it replaces what the rank showed under ``display_id``."""

    data: dict[str, Any]
    metadata: dict[str, Any] = {}
    display_id: str = ""
    update: bool = False
    late: bool = False


LIVE = "nbcomm-live-"
"""The beginning of the ``display_id`` of a text that changes all the time, such as a progress bar."""


class Result(msgspec.Struct, tag="r", array_like=True, frozen=True):
    """The value of the cell's last expression, as a MIME bundle."""

    data: dict[str, Any]
    metadata: dict[str, Any] = {}


class Clear(msgspec.Struct, tag="c", array_like=True, frozen=True):
    """``clear_output``: remove this rank's output of the cell so far; with ``wait``, at its next output."""

    wait: bool = False


class CommFromRank(msgspec.Struct, tag="m", array_like=True, frozen=True):
    """A message from a comm on the rank (for example a widget's) to its counterpart in the page.

    Attributes:
        kind: "open", "msg" or "close".
        comm: its id.
        data: as in Jupyter's own messages; so is ``metadata``.
        target: the target of an "open": "jupyter.widget" for widgets.
        buffers: binary parts, to which ``data`` refers.
        late: whether it was sent after its cell had ended.
    """

    kind: str
    comm: str
    data: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    target: str = ""
    buffers: list[bytes] = []
    late: bool = False


Item = Text | Display | Result | Clear | CommFromRank
