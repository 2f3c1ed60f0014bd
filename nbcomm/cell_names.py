"""The names that a cell has without an import: on a rank (`rank.cells.namespace`) and in a saved script (`scripts`)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

PROPERTIES = ("rank", "global_rank", "world_size", "local_rank", "node_rank", "is_global_zero", "device")
"""The attributes of the Communicator that a cell sees by their bare names."""

METHODS = (
    "barrier",
    "broadcast",
    "scatter",
    "gather",
    "all_gather",
    "reduce",
    "all_reduce",
    "reduce_scatter",
    "all_to_all",
    "send",
    "recv",
    "sendrecv",
    "isend",
    "irecv",
    "scan",
    "any_rank",
    "all_ranks",
    "new_group",
    "split_group",
    "group_rank",
    "rank_print",
    "rank_first",
    "rank_zero_first",
    "one_rank_only",
    "no_backward_sync",
    "to_device",
    "split",
    "pad_across_ranks",
    "gather_for_metrics",
)
"""The methods of the Communicator that a cell sees by their bare names."""

OBJECTS = ("torch", "dist", "comm", "fabric")
"""The modules and objects that a cell sees."""

ALL = frozenset({*PROPERTIES, *METHODS, *OBJECTS})

SPELLED = {
    "all_gather_into_tensor": "all_gather",
    "all_to_all_single": "all_to_all",
    "reduce_scatter_tensor": "reduce_scatter",
}
"""Torch's names of collectives that are another one of these, for tensors in one piece."""


def meant(word: str, names: Iterable[str] = ALL) -> str:
    """Return the name that somebody may have meant by a word; empty if none is near.

    >>> meant("allreduce"), meant("Get_rank"), meant("brodcast"), meant("lr")
    ('all_reduce', 'rank', 'broadcast', '')
    """
    there, bare = sorted(names), _bare(word)
    same = [name for name in there if _bare(name) == bare]
    near = same or difflib.get_close_matches(word.lower(), there, 1, 0.8)
    return near[0] if near else ""


_FROM_US = re.compile(r"cannot import name '(\w+)' from 'nbcomm'")


def imported_from_us(error: BaseException) -> str:
    """Return the name of a cell whose import from nbcomm has failed with this error; empty if that is not the reason.

    >>> imported_from_us(ImportError("cannot import name 'all_reduce' from 'nbcomm' (…)"))
    'all_reduce'
    """
    found = _FROM_US.search(str(error))
    return found[1] if found is not None and found[1] in ALL else ""


def _bare(name: str) -> str:
    return name.lower().removeprefix("get_").replace("_", "")


def hides(name: str, namespace: Mapping[str, Any], hidden: Mapping[str, Any]) -> bool:
    """Return whether a variable of the user's own is where a name of nbcomm's would be.

    Args:
        name: any name.
        namespace: the user's.
        hidden: what nbcomm and the shell put there.
    """
    nobody = object()
    mine = namespace.get(name, nobody)
    return name in ALL and mine is not nobody and mine is not hidden.get(name, mine)
