"""Process groups that torch hands out and whose inside can be replaced, and torch's own, which are that inside.

A process group cannot be formed again: everybody who holds it (a subgroup in a variable, a DeviceMesh, DDP, FSDP)
would hold a dead one. So what torch hands out is a process group of ours (`rank.groups.process_group.RankGroup`) that
passes every call on to one of torch's, which can be replaced (`hand_out`, `new_inner`).
"""

from __future__ import annotations

import functools
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, urlparse

import torch

from .c10d import PLUGIN, Undo, c10d, dist, put
from .gloo_sockets import THREADS, GlooDevice

_CONNECT = 10.0
"""Seconds that gloo's connections may take to form, once all members are there; they take hundredths."""

_OURS = ("gloo", "nccl")
"""Backends that our groups can hold."""


@functools.cache
def _gloo_alone() -> Any:
    """A gloo backend that knows nobody else."""
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._threads = THREADS
    return dist.ProcessGroupGloo(dist.HashStore(), 0, 1, options)


def give_default(group: torch.distributed.ProcessGroup) -> None:
    """Give a group of ours the default backend that C++ asks for what only gloo has, as DDP's logger does.

    It knows nobody, and no data ever goes through it: it serves no device on which there is data. All groups share it,
    for it has threads. C++ takes a group's name, and from torch 2.14 on its rank and size, from here, unless the group
    says them itself, as `RankGroup` does.
    """
    kind = dist.ProcessGroup.BackendType
    group._set_default_backend(kind.GLOO)
    group._register_backend(torch.device("meta"), kind.GLOO, _gloo_alone())


def devices_of(backend: str) -> dict[str, str]:
    """Which backend serves which device: "cpu:gloo,cuda:nccl" → {"cpu": "gloo", "cuda": "nccl"}."""
    if backend == "nccl":
        return {"cuda": "nccl"}
    if backend == "gloo":
        return {"cpu": "gloo", "cuda": "gloo"} if torch.cuda.is_available() else {"cpu": "gloo"}
    return dict(part.split(":") for part in backend.split(","))


def part_of(store: Any, name: str) -> Any:
    """A store whose keys are kept apart from all others of a store."""
    return dist.PrefixStore(name, store)


def new_inner(  # noqa: PLR0913, PLR0917 - a group has these
    backend: str, store: Any, rank: int, size: int, timeout: timedelta, gloo: GlooDevice, name: str, members: list[int]
) -> torch.distributed.ProcessGroup:
    """Make one of torch's own process groups, connected to its other members.

    They meet in the store first, for as long as the timeout says: a wait there can be aborted. Gloo's wait for a
    connection cannot, so it is given seconds; all are there by then, and only a death could make it last. (What gloo
    is given here is also its limit for messages, but not for collectives: see `FlightRecorder.wait`.)
    """
    store.set(f"here/{rank}", b"")
    store.wait([f"here/{other}" for other in range(size)], timeout)
    inner = dist.ProcessGroup(store, rank, size)
    made: dict[str, Any] = {}
    for device, kind in devices_of(backend).items():
        if kind not in made:
            prefixed = dist.PrefixStore(f"{device}/", store)
            if kind == "nccl":
                options = dist.ProcessGroupNCCL.Options()
                options._timeout = timeout
                options.global_ranks_in_group = members
                options.group_name = name
                made[kind] = dist.ProcessGroupNCCL(prefixed, rank, size, options)
            else:
                with gloo.noting():
                    connecting = timedelta(seconds=_CONNECT + size / 8)
                    made[kind] = dist.ProcessGroupGloo(prefixed, rank, size, gloo.options(connecting))
                made[kind]._set_default_timeout(timeout)
                made[kind].options.global_ranks_in_group = members
                made[kind].options.group_name = name
        kind_type = getattr(dist.ProcessGroup.BackendType, kind.upper())
        inner._register_backend(torch.device(device), kind_type, made[kind])
    inner._set_default_backend(getattr(dist.ProcessGroup.BackendType, ("nccl" if "nccl" in made else "gloo").upper()))
    inner._set_group_name(name)
    return inner  # type: ignore[no-any-return]


def abort_nccl(inner: torch.distributed.ProcessGroup, backend: str) -> None:
    """NCCL has an abort of its own; any thread may call it."""
    for device, kind in devices_of(backend).items():
        if kind == "nccl":
            inner._get_backend(torch.device(device)).abort()


def meet_in(store_of: Callable[[], Any]) -> Undo:
    """From now on ``init_process_group`` without a store of its own (``env://``) meets in what ``store_of`` returns.

    Torch would open a TCPStore on rank 0: a port that others may reach, and one that a second call takes again while
    the first one's server may still answer there. Where ``store_of`` returns None, torch does that.

    Returns:
        What undoes it.
    """
    # By its full name: in the package that name is a function.
    handlers = getattr(sys.modules.get("torch.distributed.rendezvous"), "_rendezvous_handlers", None)
    if handlers is None or "env" not in handlers:
        return lambda: None
    plain = handlers["env"]

    @functools.wraps(plain)
    def env(url: str, *args: Any, **kwargs: Any) -> Iterator[Any]:
        asked = dict(parse_qsl(urlparse(url).query))
        usual = all(asked.get(name, os.environ.get(name.upper())) == os.environ.get(name.upper()) for name in _PLACE)
        store = store_of() if usual else None
        if store is None:
            yield from plain(url, *args, **kwargs)
            return
        yield store, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        raise RuntimeError("There is no second rendezvous.")  # as torch's own

    handlers["env"] = env
    return lambda: handlers.update(env=plain)


_PLACE = ("rank", "world_size")


def hand_out(
    make: Callable[..., torch.distributed.ProcessGroup],
    ours: Callable[[tuple[int, int] | None], bool] = lambda _: True,
    around: Callable[[], AbstractContextManager[None]] = nullcontext,
    usual: str = "gloo",
) -> Undo:
    """From now on, whatever asks torch for a process group of gloo or NCCL gets what ``make`` returns.

    ``make(backend, rank, timeout, name, members)`` is called on the members only.

    Args:
        make: makes a group.
        ours: whether a group is to be made so: asked with the rank and size of a world, and with None for a group that
            is to be part of the present one. What is not remains torch's own.
        around: entered while torch makes one of its own.
        usual: the backend of a world for which none is named.

    Returns:
        What undoes it.
    """
    plain = c10d._new_process_group_helper
    wanted: list[str] = []

    def create(options: Any, _: Any) -> torch.distributed.ProcessGroup:
        return make(
            wanted[-1],
            options.group_rank,
            options.timeout,
            options.group_id,
            list(options.global_ranks_in_group) or list(range(options.group_size)),
        )

    @functools.wraps(plain)
    def helper(size: Any, rank: Any, members: Any, backend: Any, *args: Any, **kwargs: Any) -> Any:
        backend = usual if str(backend) == "undefined" else backend
        kinds = set(c10d.BackendConfig(c10d.Backend(backend)).get_device_backend_map().values())
        if not kinds <= set(_OURS) or not ours((rank, size) if not members else None):
            with around():
                group, store = plain(size, rank, members, backend, *args, **kwargs)
            if not members:
                _strange.add(group)
            return group, store
        wanted.append(str(backend))
        try:
            group, store = plain(size, rank, members, PLUGIN, *args, **kwargs)
        finally:
            wanted.pop()
        if isinstance(group, dist.ProcessGroup):
            world = c10d._world
            world.pg_map[group] = (c10d.Backend(backend), world.pg_map[group][1])
            world.pg_backend_config[group] = str(c10d.BackendConfig(c10d.Backend(backend)))
        return group, store

    dist.Backend.register_backend(PLUGIN, create, extended_api=True, devices=["cpu", "cuda"])
    return put(c10d, "_new_process_group_helper", helper)


_strange: weakref.WeakSet[torch.distributed.ProcessGroup] = weakref.WeakSet()


def is_strange() -> bool:
    """Whether a cell has put a world of its own in the place of the one that we hand out."""
    return dist.group.WORLD in _strange


def known_groups() -> list[tuple[torch.distributed.ProcessGroup, str, list[int], str]]:
    """Every group of this process in the order in which they were made: group, name, members, backend."""
    world = c10d._world
    return [
        (group, world.pg_names[group], sorted(world.pg_group_ranks[group]), str(world.pg_map[group][0]))
        for group in world.pg_map
    ]


def join_group(name: str, members: list[int], backend: str, timeout: timedelta) -> torch.distributed.ProcessGroup:
    """Make a group of this name, which torch does not choose; all members must, or have had it for long."""
    default = c10d._get_default_group()
    group, _ = c10d._new_process_group_helper(
        len(members),
        members.index(default.rank()),
        members,
        c10d.Backend(backend),
        c10d._world.pg_map[default][1],
        name,
        timeout=timeout,
    )
    c10d._world.pg_group_ranks[group] = {member: place for place, member in enumerate(members)}
    return group  # type: ignore[no-any-return]


def is_known(group: torch.distributed.ProcessGroup | None) -> bool:
    """Whether torch knows a group, or for None the world's: one that was destroyed it does not."""
    return bool(dist.is_initialized() if group is None else group in c10d._world.pg_map)


def group_count() -> int:
    """How many names for groups this process has given away."""
    return int(c10d._world.group_count)


def set_group_count(count: int) -> None:
    """Give the next group the name that the other ranks will give it."""
    c10d._world.group_count = count
