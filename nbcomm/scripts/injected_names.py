"""The names that a cell finds without importing them, as lines of a script.

They are those of `nbcomm.rank.cells.namespace`; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Collection

from ..cell_names import METHODS, PROPERTIES

MODULES = {"torch": "import torch", "dist": "import torch.distributed as dist"}

CELL_NAMES = frozenset({*PROPERTIES, *METHODS, *MODULES, "comm", "fabric"})
"""All that a cell sees; `display` is IPython's own."""

OWN = CELL_NAMES | {"display"}

_SILENT = frozenset({"print", "display", "rank_print", "barrier"})
"""These return None, so what they return is not shown."""


def returns_nothing(function: str) -> bool:
    """Whether a call of this name shows nothing by itself."""
    return function in _SILENT


def imports(wanted: Collection[str]) -> list[str]:
    """The import lines that bind these names."""
    lines = [line for name, line in MODULES.items() if name in wanted]
    return lines + (["from nbcomm import Fabric"] if "fabric" in wanted else [])


def lines(name: str, comm: str) -> list[str]:
    """The lines that bind one name, for those who have deleted their own."""
    return bindings({name}, comm) or imports({name})


def bindings(wanted: Collection[str], comm: str) -> list[str]:
    """The lines that bind these names.

    Args:
        wanted: of `OWN`.
        comm: what the script calls its communicator.
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
