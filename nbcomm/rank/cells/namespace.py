"""What a cell sees without importing it.

The names are in the user's namespace, where all that reads globals finds them: functions typed before, ``eval``,
queries of pandas, cloudpickle. ``%who`` does not list them. A variable of the user's own with the same name wins until
it is deleted.
"""

from __future__ import annotations

import functools
from typing import Any

from ...cell_names import METHODS, PROPERTIES
from ...comm import Communicator
from ...fabric import Fabric


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
