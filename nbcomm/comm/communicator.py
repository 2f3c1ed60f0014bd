"""The Communicator: the collectives, for data of any kind.

Laws that hold for every method:

* Every rank of the group must call it (of ``send`` and ``recv``: both ranks). ``src`` and ``dst`` are global ranks.
* What is returned is new: the input is never modified, and no result shares memory with it.
* Tensors stay tensors, numbers numbers, objects objects; nested dicts, lists, tuples, namedtuples and
  dataclasses keep their structure and their types. Results are detached, unless ``sync_grads=True``.
* An error that one rank meets before data moves is raised on every rank of the group, naming the rank; so is it if the
  ranks are not in the same collective, or differ in the op, the structure, the shapes or the dtypes.

What it costs beyond torch's own messages: nothing to reduce one tensor (``reduce_scatter``, too); a head
of 512 bytes first for everything else, and nothing after it if the data fits in. ``all_to_all`` needs two such rounds,
and so does ``all_gather`` of nested data that is not alike on all ranks, or with ``sync_grads``.
"""

from __future__ import annotations

from ..annotations import as_written
from .split_group import SplitGroup


@as_written
class Communicator(SplitGroup):
    """The collectives of one rank, over the default process group, which must be initialized."""
