"""``x?``, ``%psource``, ``%page`` and the like on a rank: what a notebook shows in its pager is the cell's output.

It is written as text, so that it is folded line by line: equal help is shown once, and differences between ranks (the
value of ``x``, an address) are visible.
"""

from __future__ import annotations

import re
from typing import Any

from ...protocol import Display
from ..output.capture import Capture

_BACK = re.compile(r"\x1b\[39(;00)?m")
"""How IPython ends a colour. Lines are shown one by one: a colour that is not ended would colour all later lines."""

_NO_CELL = {
    "set_next_input": (
        "A rank cannot put code into a cell of the notebook: type this in a cell that runs in the notebook itself.\n"
    ),
    "edit_magic": "A rank has no editor: type %edit in a cell that runs in the notebook itself.\n",
}


def show_pages(shell: Any, capture: Capture) -> None:
    """Make the shell's pager, and its other messages to a front end, write to the running cell."""
    pass_on = shell.payload_manager.write_payload

    def write_payload(data: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        run = capture.attribution()
        source = data.get("source", "")
        if run is None:  # a cell of ipyparallel's own client
            pass_on(data, *args, **kwargs)
        elif source == "page":
            _show(capture, run, data["data"])
        elif source in _NO_CELL:
            capture.write(run, "stderr", _NO_CELL[source])

    shell.payload_manager.write_payload = write_payload


def _show(capture: Capture, run: int, data: dict[str, Any]) -> None:
    text = data.get("text/plain")
    if set(data) == {"text/plain"} and isinstance(text, str):
        text = _BACK.sub("\x1b[0m", text)
        capture.write(run, "stdout", text if text.endswith("\n") else text + "\n")
    else:
        capture.show(run, Display(data, late=capture.is_late(run)))
