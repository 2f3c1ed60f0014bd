"""What a cell sees without importing it.

The names are put behind the user's namespace, where Python looks for built-in functions: a variable of the user's own
with the same name wins, and after ``del`` nbcomm's is visible again. Only code whose globals are the user's sees them;
imported modules keep the true builtins.
"""

from __future__ import annotations

import builtins
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


def install(namespace: dict[str, Any], names: dict[str, Any]) -> None:
    """Put names behind a namespace. Repeat it before each cell: builtins may have been added since."""
    namespace["__builtins__"] = {**vars(builtins), **names}
