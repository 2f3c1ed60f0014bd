"""The world's process group, lent to code that assumes it is alone.

A script, or a cell pasted from a tutorial, makes its process group, and destroys it at its end. Here the group already
exists, and other cells hold objects that use it (DDP modules, subgroups) and must live on. So ``init_process_group``
finds the world's group already made, and a later ``destroy_process_group`` destroys what was made since, and leaves the
rest. A cell's loan lasts until it is returned, in any cell; a script's ends with the script.

A process that such a process forks is no rank, and borrows nothing. It still sees the group, for a worker of a loader
asks that for its rank; but ``init_process_group`` makes one of its own. What `torch.multiprocessing.start_processes`
starts is to make one: it sees none, as code that looks whether there is one expects.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from urllib.parse import parse_qsl, urlparse

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from ..errors import CollectiveError
from ..torch_internals import dtensor, gloo_threads, process_groups

_PATIENCE = 2.0
"""Seconds that the end of a script waits for gloo's threads."""

_init, _destroy = dist.init_process_group, dist.destroy_process_group
_signature = inspect.signature(_init)


class _Loan:
    """One borrower's view of the world's group.

    Args:
        who: the borrower, in words.
        strict: a second ``init_process_group`` raises torch's error, as in a process of its own.
    """

    def __init__(self, who: str, *, strict: bool = False) -> None:
        self.who = who
        self.strict = strict
        self.taken = self.returned = False
        self.before = _names()

    def take(self, asked: dict[str, Any]) -> None:
        """Initialize for the borrower: check that the existing group is what it asks for."""
        self._check_place(*_place_in(asked))
        self._check_backend(asked.get("backend"))
        self.taken = True
        if not self.strict:  # what was made before belongs to other cells, or to an earlier run of this one
            self.before = _names()

    def _check_place(self, rank: int, size: int) -> None:
        here = dist.get_rank(), dist.get_world_size()
        if size not in (-1, here[1]):
            raise CollectiveError(
                f"{self.who} requests a process group of {_ranks(size)}, but this world has {_ranks(here[1])}: leave "
                f"world_size and rank out, or start another world (%distributed start -n {size})."
            )
        if rank not in (-1, here[0]):
            raise CollectiveError(
                f"{self.who} requests rank {rank} of the process group, but it runs on rank {here[0]} of "
                f"{here[1]}: leave world_size and rank out, or pass rank=dist.get_rank()."
            )

    def _check_backend(self, backend: Any) -> None:
        there = str(dist.get_backend_config())
        kinds = str(backend or "").lower().split(",")
        if not {kind.rpartition(":")[2] for kind in kinds if kind} <= set(process_groups.devices_of(there).values()):
            raise CollectiveError(
                f"{self.who} requests a process group with backend {backend}, but this world has {there}: start "
                f"another world (%distributed start --backend {backend}), or leave the backend out to use this world's."
            )

    def give_back(self) -> None:
        """Destroy all groups for the borrower: only those made since the loan began are destroyed."""
        self.taken, self.returned = False, True
        for group, name, *_ in process_groups.known_groups():
            if name not in self.before and process_groups.is_known(group):
                _destroy(group)
        dtensor.forget_meshes()


def _never() -> bool:
    return False


_script: _Loan | None = None
_cells: _Loan | None = None
_ours: Callable[[], bool] = _never
_inherited: Any = None
"""In a child: the group of the process that was forked. Torch may have forgotten it since."""


def lend(ours: Callable[[], bool], who: str) -> Callable[[], None]:
    """Make ``init_process_group`` borrow the world's group while it exists, from now on.

    Args:
        ours: whether the existing process group is the world's.
        who: the caller, in words.

    Returns:
        A function that ends this: torch's own functions are restored.
    """
    global _ours, _cells
    if dist.init_process_group is not init_process_group:
        os.register_at_fork(after_in_child=_forked)
    for module in (dist, c10d):  # not undone: modules keep the functions that they have imported
        module.init_process_group = init_process_group  # type: ignore[attr-defined]
        module.destroy_process_group = destroy_process_group  # type: ignore[attr-defined]
    _ours, _cells = ours, _Loan(who)
    return _end


def _end() -> None:
    global _script, _cells  # noqa: PLW0603 - as above
    _script = _cells = None


def _forked() -> None:
    global _inherited  # noqa: PLW0603 - as above
    _end()
    if _inherited is None:  # else it is a child's child, and what it does not see is not there
        _inherited = dist.group.WORLD
    if _is_inherited() and process_groups.is_starting_processes():
        _forget_inherited()


def _is_inherited() -> bool:
    return _inherited is not None and dist.group.WORLD is _inherited


def _forget_inherited() -> None:
    process_groups.keep_all()
    _destroy()


@contextmanager
def to_script(name: str) -> Iterator[None]:
    """Lend the world's group to a script for the block: other loans go on, and this one ends with the block.

    Args:
        name: of this run: the default store has the keys of this run only. Every rank gives the same one.
    """
    global _script  # noqa: PLW0603
    _script = _Loan("This script", strict=True) if dist.is_initialized() and _ours() else None
    try:
        with process_groups.own_keys(name) if _script is not None else nullcontext():
            yield
    finally:
        _script = None


def forgive() -> None:
    """Allow the script to initialize repeatedly, as cells may: it expects that the world may already exist."""
    if _script is not None:
        _script.strict = False


def leave() -> None:
    """Leave the world's groups at the end of a process: destroy them if it has destroyed what was lent to it."""
    if _cells is not None and _cells.returned and dist.is_initialized():
        _destroy()
    gloo_threads.await_workers(_PATIENCE)  # also those of groups that the script holds or has not destroyed


def destroy_world() -> None:
    """Destroy the world's groups, even if they are lent."""
    if _cells is not None:
        _cells.taken = False
    _destroy()


def is_lent() -> bool:
    """Return whether this process lends its world."""
    return _cells is not None


@functools.wraps(_init)
def init_process_group(*args: Any, **kwargs: Any) -> None:
    """Initialize as torch does; an existing world group is lent instead."""
    if _is_inherited():
        _forget_inherited()
    loan = _script or _cells
    if loan is None or not dist.is_initialized() or not _ours() or (loan.strict and loan.taken):
        _init(*args, **kwargs)  # which refuses a second one
    else:
        loan.take(_signature.bind(*args, **kwargs).arguments)


@functools.wraps(_destroy)
def destroy_process_group(group: Any = None) -> None:
    """Destroy as torch does; what was lent is returned instead."""
    loan = _script or _cells
    everything = group is None or group is dist.GroupMember.WORLD
    if everything and _is_inherited():
        _forget_inherited()
    elif loan is not None and everything and dist.is_initialized() and _ours() and (loan.taken or loan is _script):
        loan.give_back()
    else:
        _destroy(group)
        dtensor.forget_meshes()


def _names() -> set[str]:
    return {name for _, name, *_ in process_groups.known_groups()}


def _ranks(size: int) -> str:
    return f"{size} rank{'s' * (size != 1)}"


def _place_in(asked: dict[str, Any]) -> tuple[int, int]:
    """Return the rank and the size that a call asks for; -1 for what it leaves open.

    The place where the ranks would meet does not matter: they have already met.
    """
    rank, size = _number(asked.get("rank")), _number(asked.get("world_size"))
    method = urlparse(asked.get("init_method") or "env://")
    if asked.get("store") is not None and "init_method" in asked and asked["init_method"] is not None:
        raise ValueError("Cannot specify both init_method and store.")  # as in torch
    query = dict(parse_qsl(method.query))
    rank, size = _number(query.get("rank", rank)), _number(query.get("world_size", size))
    if asked.get("store") is None and method.scheme == "env":
        rank = _number(os.environ.get("RANK")) if rank == -1 else rank
        size = _number(os.environ.get("WORLD_SIZE")) if size == -1 else size
    elif -1 in (rank, size):
        how = "a store" if asked.get("store") is not None else f"init_method={asked['init_method']!r}"
        raise CollectiveError(
            f"init_process_group with {how} needs rank and world_size: pass rank=dist.get_rank() and "
            "world_size=dist.get_world_size(), or leave all of them out."
        )
    return rank, size


def _number(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        return -1
