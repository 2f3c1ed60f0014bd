"""The world's process group, lent to a script that believes it is alone.

A script makes its process group, and destroys it at its end. Here it stands already, and cells hold handles of it (DDP
modules, subgroups) that must outlive the script. So while a script runs, ``init_process_group`` finds the world's group
made as it wishes, and ``destroy_process_group`` destroys what the script has made in it, and leaves the rest.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from ..errors import CollectiveError
from .torch_internals import process_groups


class _Loan:
    """One script's view of the world's group."""

    def __init__(self) -> None:
        self.taken = False
        self._before = {id(group) for group, *_ in process_groups.known_groups()}

    def take(self, backend: Any = None) -> None:
        """The script initializes: all is there, if it is of the kind that it wants."""
        there = str(dist.get_backend_config())
        kinds = str(backend or "").lower().split(",")
        if not {kind.rpartition(":")[2] for kind in kinds if kind} <= set(process_groups.devices_of(there).values()):
            raise CollectiveError(
                f"This script wants a process group of {backend}, and this world's is of {there}: start another "
                f"world (%distributed start --backend {backend}), or let the script choose what is there."
            )
        self.taken = True

    def give_back(self) -> None:
        """The script destroys all groups: those that it has made are destroyed."""
        self.taken = False
        for group, *_ in process_groups.known_groups():
            if id(group) not in self._before and process_groups.is_known(group):
                _destroy(group)


_init, _destroy = dist.init_process_group, dist.destroy_process_group
_loan: _Loan | None = None


@contextmanager
def lent() -> Iterator[None]:
    """While this lasts, the world's group is a script's own."""
    global _loan  # noqa: PLW0603 - a process has one world
    for module in (dist, c10d):  # for good: modules that the script imports keep what they have found
        module.init_process_group = init_process_group  # type: ignore[attr-defined]
        module.destroy_process_group = destroy_process_group  # type: ignore[attr-defined]
    _loan = _Loan() if dist.is_initialized() else None
    try:
        yield
    finally:
        _loan = None


@functools.wraps(_init)
def init_process_group(*args: Any, **kwargs: Any) -> None:
    """As torch's, but for a script that a cell runs."""
    if _loan is None or _loan.taken:
        _init(*args, **kwargs)
    else:
        _loan.take(*args[:1], **({"backend": kwargs["backend"]} if "backend" in kwargs else {}))


@functools.wraps(_destroy)
def destroy_process_group(group: Any = None) -> None:
    """As torch's, but for a script that a cell runs."""
    if _loan is None or group not in (None, dist.GroupMember.WORLD):
        _destroy(group)
    else:
        _loan.give_back()
