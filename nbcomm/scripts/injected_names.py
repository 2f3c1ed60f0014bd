"""The names that a cell has without an import, as lines of a script.

They are those of `nbcomm.rank.cells.namespace`; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Collection

from ..cell_names import ALL, METHODS, PROPERTIES

MODULES = {"torch": "import torch", "dist": "import torch.distributed as dist"}

OWN = ALL | {"display"}
"""All names that a cell has: `display` is IPython's own."""

_SILENT = frozenset({"print", "display", "rank_print", "barrier"})
"""Functions that return None, so their results are not shown."""


def returns_nothing(function: str) -> bool:
    """Tell whether a call of this function has no result to show."""
    return function in _SILENT


def imports(wanted: Collection[str]) -> list[str]:
    """Return the import lines that bind these names."""
    lines = [line for name, line in MODULES.items() if name in wanted]
    return lines + (["from nbcomm import Fabric"] if "fabric" in wanted else [])


def lines(name: str, comm: str) -> list[str]:
    """Return the lines that bind one name again, after a cell has deleted its own."""
    return bindings({name}, comm) or imports({name})


def bindings(wanted: Collection[str], comm: str) -> list[str]:
    """Return the lines that bind these names.

    Args:
        wanted: names in `OWN`.
        comm: the script's name for its communicator.
    """
    lines = []
    properties = [name for name in PROPERTIES if name in wanted]
    if properties:
        lines.append(f"{', '.join(properties)} = {', '.join(f'{comm}.{name}' for name in properties)}")
    lines += [f"{name} = {comm}.{name}" for name in METHODS if name in wanted]
    if "comm" in wanted and comm != "comm":
        lines.append(f"comm = {comm}")
    if "display" in wanted:
        lines.append(f"display = {comm}.show")
    if "fabric" in wanted:
        lines.append(f"fabric = Fabric({comm})")
    return lines
