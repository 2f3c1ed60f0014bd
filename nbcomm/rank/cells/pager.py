"""``x?``, ``%psource``, ``%page`` and the like on a rank: what a notebook shows in its pager is the cell's output.

It is written as text, so that it is folded line by line: equal help is shown once, and differences between ranks (the
value of ``x``, an address) are visible. Names that nbcomm has put behind the namespace are found, too.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterator, Mapping
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


def find_names(shell: Any) -> None:
    """Let ``all_reduce?`` and ``*reduce*?`` find the names behind the namespace."""
    find = type(shell)._ofind  # noqa: SLF001 - the public ways all lead here

    def ofind(name: str, places: Any = None) -> Any:
        return find(shell, name, places or places_of(shell.user_ns, behind(shell.user_ns)))

    shell._ofind = ofind  # noqa: SLF001
    shell.ns_table["builtin"] = _Builtins(shell)


def behind(namespace: dict[str, Any]) -> dict[str, Any]:
    """Return what nbcomm has put behind a namespace; see `nbcomm.rank.cells.namespace`."""
    found = namespace.get("__builtins__")
    if not isinstance(found, dict):  # before the first cell
        return {}
    return {name: value for name, value in found.items() if name not in vars(builtins)}


def places_of(own: dict[str, Any], others: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the namespaces in which IPython looks for a name, in Python's order."""
    return [("Interactive", own), ("nbcomm", others), ("Python builtin", vars(builtins))]


class _Builtins(Mapping[str, Any]):
    """Python's built-in names and nbcomm's, as they are at each access."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell

    def _all(self) -> dict[str, Any]:
        return {**vars(builtins), **behind(self._shell.user_ns)}

    def __getitem__(self, name: str) -> Any:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())
