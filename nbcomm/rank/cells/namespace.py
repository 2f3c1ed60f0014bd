"""What a cell sees without importing it.

The names are in the user's namespace, where all that reads globals finds them: functions typed before, ``eval``,
queries of pandas, cloudpickle. ``%who`` does not list them. A variable of the user's own with the same name wins until
it is deleted.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from ...cell_names import ALL, METHODS, PROPERTIES, hides
from ...comm import Communicator
from ...fabric import Fabric
from ...short_repr import sketch


def cell_names(comm: Communicator) -> dict[str, Any]:
    """Return the names that cells of this rank see, and their values."""
    import torch
    import torch.distributed as dist

    return {
        **{name: getattr(comm, name) for name in (*PROPERTIES, *METHODS)},
        "torch": torch,
        "dist": dist,
        "comm": comm,
        "fabric": _fabric_of(comm),
    }


@functools.lru_cache(maxsize=1)
def _fabric_of(comm: Communicator) -> Any:
    return Fabric(comm)


def install(shell: Any, names: dict[str, Any]) -> None:
    """Put names into the shell's namespace. Repeat it before each cell: the last one may have deleted some."""
    own, hidden = shell.user_ns, shell.user_ns_hidden
    for name, value in names.items():
        if name not in own or (name in hidden and own[name] is hidden[name]):
            own[name] = hidden[name] = value


class HidingVariables:
    """The user's variables that hide nbcomm's names: said once, where that may explain what a cell has done."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def explain(self, shell: Any, code: str, error: str, *, talks: bool) -> list[str]:
        """Return what to say of a cell that has ended.

        Args:
            shell: the rank's.
            code: the cell.
            error: its traceback; empty if there is none.
            talks: whether it has called a collective: what that computes, or who takes part, may depend on ``rank``.
        """
        if not (error or talks or self._told):
            return []  # most cells
        own, hidden = shell.user_ns, shell.user_ns_hidden
        there = {name for name in ALL if hides(name, own, hidden)}
        self._told &= there
        suspects = there if error else {*there}.intersection(PROPERTIES) if talks else set()
        said = []
        for name in sorted(suspects - self._told):
            if re.search(rf"\b{name}\b", code + error) and not _alike(own[name], hidden[name]):
                self._told.add(name)
                what = f"a variable of yours ({_told(own[name])}) that hides nbcomm's"
                said.append(f"{name} is {what}; del {name} ends that.")
        return said


def _told(value: Any) -> str:
    return sketch(value) if isinstance(value, bool | int | float | str) else type(value).__name__


def _alike(one: Any, other: Any) -> bool:
    """Return whether two values are equal, so that it does not matter which one is seen; no user's code is run."""
    return type(one) is type(other) and type(one).__module__ in ("builtins", "torch") and bool(one == other)
