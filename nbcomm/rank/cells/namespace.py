"""What a cell sees without importing it.

The names are in the user's namespace, where all that reads globals finds them: functions typed before, ``eval``,
queries of pandas, cloudpickle. ``%who`` does not list them. A variable of the user's own with the same name wins until
it is deleted.
"""

from __future__ import annotations

import functools
import operator
import re
import sys
import types
from collections.abc import Mapping
from typing import Any

from ...cell_names import ALL, METHODS, PROPERTIES, hides
from ...comm import Communicator
from ...fabric import Fabric

_every_name = operator.itemgetter(*ALL)


def cell_names(comm: Communicator) -> Mapping[str, Any]:
    """Return the names that cells of this rank see, and their values."""
    return _cell_names(comm, len(vars(comm)))  # a user may give it a method of another kind


@functools.lru_cache(maxsize=1)
def _cell_names(comm: Communicator, _attributes: int) -> Mapping[str, Any]:
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


def install(shell: Any, names: Mapping[str, Any]) -> None:
    """Put names into the shell's namespace. Repeat it before each cell: the last one may have deleted some."""
    own, hidden = shell.user_ns, shell.user_ns_hidden
    if all(map(operator.is_, map(own.get, names), names.values())) and all(
        map(operator.is_, map(hidden.get, names), names.values())
    ):
        return  # before most cells: it must cost nothing
    for name, value in names.items():
        if name not in own or (name in hidden and own[name] is hidden[name]):
            own[name] = hidden[name] = value


class HidingVariables:
    """The user's variables that hide nbcomm's names: each is told of once, until it is deleted.

    That is where it begins, if it is surely no help: another number than that of this rank, or another thing by the
    name of a collective. The others are told of where they may explain what a cell has done.
    """

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._before: set[str] = set()

    def look(self, shell: Any, *, tell: bool = True) -> list[str]:
        """Return what to say of names that are hidden since the last look.

        Args:
            shell: the rank's.
            tell: otherwise it is noted only: a script does not need the names.
        """
        new = self._there(shell) - self._before
        self._before |= new
        own, hidden = shell.user_ns, shell.user_ns_hidden
        return self._tell({name for name in new if tell and _surprises(name, own[name], hidden[name])}, own)

    def explain(self, shell: Any, code: str, error: str, *, talks: bool) -> list[str]:
        """Return what to say of a cell that has ended.

        Args:
            shell: the rank's.
            code: the cell.
            error: its traceback; empty if there is none.
            talks: whether it has called a collective: what that computes, or who takes part, may depend on ``rank``.
        """
        said, there = self.look(shell), self._before
        if not there or not (error or talks):
            return said  # most cells
        own, hidden = shell.user_ns, shell.user_ns_hidden
        named = [name for name in there if re.search(rf"\b{name}\b", code + error)]
        return [*said, *self._tell({name for name in named if _explains(name, own[name], hidden[name], error)}, own)]

    def _there(self, shell: Any) -> set[str]:
        own, hidden = shell.user_ns, shell.user_ns_hidden
        try:  # after most cells: it must cost nothing
            same = all(map(operator.is_, _every_name(own), _every_name(hidden)))
        except KeyError:  # some are deleted
            same = False
        there = set[str]() if same else {name for name in ALL if hides(name, own, hidden)}
        self._told &= there
        self._before &= there
        return there

    def _tell(self, names: set[str], own: dict[str, Any]) -> list[str]:
        names -= self._told
        self._told |= names
        return [
            f"your {'function' if callable(own[name]) else 'variable'} {name} hides nbcomm's {name}; "
            f"type del {name} to undo this."
            for name in sorted(names)
        ]


_NUMBERS = frozenset(PROPERTIES) - {"device"}
_COLLECTIVES = frozenset(METHODS[: METHODS.index("scan") + 1])


def _surprises(name: str, mine: Any, ours: Any) -> bool:
    """Return whether the user hardly expects that the name is theirs; device and the like have many good values."""
    if name in _NUMBERS:
        return not _same_number(mine, ours)
    if name in ("torch", "dist"):
        return not isinstance(mine, types.ModuleType)
    return name in _COLLECTIVES and not _alike(mine, ours) and mine is not getattr(sys.modules.get(_TORCHS), name, None)


def _explains(name: str, mine: Any, ours: Any, error: str) -> bool:
    """Return whether a name that is the user's may explain an error; without one, what a collective has computed."""
    if name in _NUMBERS:
        return not _same_number(mine, ours)
    return bool(error) and not _alike(mine, ours)


def _same_number(mine: Any, ours: int) -> bool:
    if type(mine).__module__ not in ("builtins", "numpy", "torch"):
        return False
    try:
        return operator.index(mine) == ours
    except Exception:  # noqa: BLE001 - of a tensor, whatever it holds
        return False


_TORCHS = "torch.distributed"


def _alike(one: Any, other: Any) -> bool:
    """Return whether two values are equal, so that it does not matter which one is seen; no user's code is run."""
    return type(one) is type(other) and type(one).__module__ in ("builtins", "torch") and bool(one == other)
