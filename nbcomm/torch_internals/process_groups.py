"""Process groups that torch hands out and whose inner group can be replaced, and torch's own groups inside them.

A process group cannot be re-formed: every holder of it (a variable with a subgroup, a DeviceMesh, DDP, FSDP) would
keep a dead one. So torch hands out a process group of ours (`rank.groups.process_group.RankGroup`) that passes every
call on to one of torch's, which can be replaced (`hand_out`, `new_inner`).
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from types import FrameType
from typing import Any
from urllib.parse import parse_qsl, urlparse

import torch
from torch.multiprocessing.spawn import start_processes
from torch.torch_version import TorchVersion

from . import nccl
from .c10d import PLUGIN, Undo, c10d, dist, put
from .gloo_sockets import GlooSockets

_CONNECT = 10.0
"""Seconds that gloo's connections may take to form, after all members have arrived; they take hundredths."""

_HAS_OWN_LIMITS = TorchVersion(torch.__version__) >= "2.9"
"""Whether gloo's collectives have limits of their own, and not that of its connections, which would end late ones.
Where they have none, only we end a connection that takes too long, and its thread is left behind."""

_LATE = 1.0
"""Seconds after which gloo has told by itself that this was too long."""

_LOOK = 0.02  # seconds between two looks whether they are still wanted

_OURS = ("gloo", "nccl")  # backends that our groups can hold


def give_default(group: torch.distributed.ProcessGroup, gloo: GlooSockets) -> None:
    """Give a group of ours the default backend that C++ asks for gloo's own attributes, as DDP's logger does.

    It has no other members, and no data ever goes through it, because it serves no device with data. All groups share
    it, because it has threads. C++ reads a group's name, and from torch 2.14 on its rank and size, from it, unless the
    group gives them itself, as `RankGroup` does.
    """
    kind = dist.ProcessGroup.BackendType
    group._set_default_backend(kind.GLOO)
    group._register_backend(torch.device("meta"), kind.GLOO, gloo.alone)


def devices_of(backend: str) -> dict[str, str]:
    """Return the backend of each device: "cpu:gloo,cuda:nccl" → {"cpu": "gloo", "cuda": "nccl"}."""
    if backend == "nccl":
        return {"cuda": "nccl"}
    if backend == "gloo":
        return {"cpu": "gloo", "cuda": "gloo"} if torch.cuda.is_available() else {"cpu": "gloo"}
    return dict(part.split(":") for part in backend.split(","))


def part_of(store: Any, name: str) -> Any:
    """Return a view of a store whose keys are separate from all its other keys."""
    return dist.PrefixStore(name, store)


def default_store() -> Any:
    """Return the store of the world's group."""
    return c10d._world.pg_map[dist.group.WORLD][1]


@contextmanager
def own_keys(name: str) -> Iterator[None]:
    """Let the world's default store have other keys in the block."""
    known, group = c10d._world.pg_map, dist.group.WORLD
    before = known[group]
    known[group] = before[0], part_of(before[1], name)
    try:
        yield
    finally:
        known.update({group: before} if group in known else {})


def _patience(store: Any) -> timedelta:
    """Return how long a store waits for a key where it is told no time; a view of ours would say something else."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store.timeout  # type: ignore[no-any-return]


def new_inner(  # noqa: PLR0913, PLR0917 - a group has these
    backend: str,
    store: Any,
    rank: int,
    size: int,
    timeout: timedelta,
    gloo: GlooSockets,
    name: str,
    members: list[int],
    ended: Callable[[], bool] = lambda: False,
    gpu: torch.device | None = None,
    patience: timedelta | None = None,
) -> torch.distributed.ProcessGroup:
    """Make one of torch's own process groups, connected to its other members.

    They meet in the store first, within ``patience`` or else the timeout, and tell each other where their gloo listens.
    A wait there can be aborted; gloo's wait for a connection cannot. All members have arrived by then, so only the end
    of one could prolong it: it gets only seconds, and it is left alone as soon as ``ended`` tells that nobody wants the
    group any more.
    (Gloo's timeout here is also its limit for messages, but not for collectives: see `FlightRecorder.wait`.)

    NCCL makes its communicator for ``gpu`` then, too: see `nccl`.
    """
    kinds = devices_of(backend)
    if "nccl" in kinds.values():
        nccl.check_built_in()
    store.set(f"here/{rank}", gloo.address() if "gloo" in kinds.values() else "")
    everyone = [f"here/{other}" for other in range(size)]
    if _patience(store) != (patience or timeout):  # else `multi_get` alone waits as long
        store.wait(everyone, patience or timeout)
    gloo.meet(store.multi_get(everyone))
    inner = dist.ProcessGroup(store, rank, size)
    if "nccl" in kinds.values() and gpu is not None:
        inner.bound_device_id = gpu  # first: a backend takes it over as it is registered
    made: dict[str, Any] = {}
    for device, kind in kinds.items():
        if kind not in made:
            prefixed = dist.PrefixStore(f"{device}/", store)
            if kind == "nccl":
                made[kind] = nccl.make(prefixed, rank, size, name, members)
            else:
                seconds = _CONNECT + size / 8
                options = gloo.options(timedelta(seconds=seconds) if _HAS_OWN_LIMITS else timeout)
                made[kind] = _unless(ended, partial(dist.ProcessGroupGloo, prefixed, rank, size, options), seconds)
                made[kind]._set_default_timeout(timeout)
                made[kind].options.global_ranks_in_group = members
                made[kind].options.group_name = name
        kind_type = getattr(dist.ProcessGroup.BackendType, kind.upper())
        inner._register_backend(torch.device(device), kind_type, made[kind])
    inner._set_default_backend(getattr(dist.ProcessGroup.BackendType, ("nccl" if "nccl" in made else "gloo").upper()))
    inner._set_group_name(name)
    if "nccl" in made and gpu is not None:
        connect = partial(nccl.connect, made["nccl"], gpu)
        _unless(ended, connect, nccl.CONNECT, partial(nccl.abort, made["nccl"]))
    return inner  # type: ignore[no-any-return]


DIRECT = ("allreduce", "broadcast")
"""Methods of a group that only choose the backend by their tensors' device, and pass on what they get."""


def direct(inner: torch.distributed.ProcessGroup, backend: str) -> Any:
    """Return a group's backend of gloo's for the CPU; None if it has none."""
    return inner._get_backend(_CPU) if devices_of(backend).get("cpu") == "gloo" else None


def is_plain(tensors: list[torch.Tensor]) -> bool:
    """Return whether a call for these tensors may go to the backend itself, by `direct`.

    A call of a group goes through torch's dispatcher, which takes a tenth of a small call's time. It matters to
    profilers, to modes (`CommDebugMode`), to tensors that are more than their memory, and for gradients.
    """
    if len(tensors) != 1:
        return False
    tensor = tensors[0]
    return (
        type(tensor) is torch.Tensor
        and tensor.is_cpu
        and not tensor.requires_grad
        and tensor.layout is _STRIDED
        and not tensor.is_neg()
        and not _is_profiled()
        and not _modes()
        and not tensor.is_nested
        and not tensor.is_quantized
    )


_STRIDED = torch.strided
_CPU = torch.device("cpu")
# Without these two, nothing is plain.
_is_profiled: Callable[[], bool] = getattr(torch.autograd, "_profiler_enabled", lambda: True)
_modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 1)


def _unless(
    ended: Callable[[], bool], connect: Callable[[], Any], seconds: float, undo: Callable[[], object] = lambda: None
) -> Any:
    """Connect on another thread: this one hears signals meanwhile, and does not wait for what nobody wants.

    Gloo keeps to its own limit while it connects, but not while it looks into the store where the others listen. NCCL
    has no limit; ``undo`` ends what it has made when nobody waits any more.
    """
    made: list[Any] = []
    left: list[bool] = []
    until = time.monotonic() + seconds + _LATE
    under_way = threading.Lock()
    under_way.acquire()

    def work() -> None:
        try:
            made.append(connect())
        except BaseException as error:  # noqa: BLE001 - for whoever waits
            made.append(error.with_traceback(None))  # it leads to `made`: a circle that would keep gloo's threads
        finally:
            under_way.release()
            if left:
                undo()

    threading.Thread(target=work, name="nbcomm-connect", daemon=True).start()
    while not under_way.acquire(timeout=_LOOK):
        if ended() or time.monotonic() > until:
            left.append(True)
            if under_way.acquire(blocking=False):  # it has just ended, perhaps before it could see that
                undo()
            if ended():
                raise dist.DistNetworkError("The connection of the process group is closed: it is not wanted any more.")
            raise dist.DistNetworkError(f"Timed out after {seconds:g} s: a member that had come to this group is gone.")
    result = made.pop()
    if isinstance(result, BaseException):
        try:
            raise result
        finally:
            del result  # its traceback leads here
    return result


def on_devices(inner: torch.distributed.ProcessGroup, backend: str) -> list[Any]:
    """Return the NCCL backends of a group."""
    return [inner._get_backend(torch.device(device)) for device, kind in devices_of(backend).items() if kind == "nccl"]


def meet_in(store_of: Callable[[], Any]) -> Undo:
    """Let ``init_process_group`` without a store (``env://``) meet in the store that ``store_of`` returns from now on.

    Torch would open a TCPStore on rank 0: a port that others may reach, and one that a second call takes again while
    the first one's server may still answer there. If ``store_of`` returns None, torch does that.

    Returns:
        A function that undoes this.
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
    """Let torch return what ``make`` returns for every process group of gloo or NCCL from now on.

    ``make(backend, rank, timeout, name, members)`` is called on the members only.

    Args:
        make: makes a group.
        ours: tells whether to make a group by ``make``; called with the rank and size of a world, or with None for a
            subgroup of the present world. Other groups remain torch's own.
        around: returns a context that is entered while torch makes a group of its own.
        usual: the backend of a world for which none is named.

    Returns:
        A function that undoes this.
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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch gives them, too
            kinds = set(c10d.BackendConfig(c10d.Backend(backend)).get_device_backend_map().values())
        if not kinds <= set(_OURS) or not ours((rank, size) if not members else None):
            with around():
                group, store = plain(size, rank, members, backend, *args, **kwargs)
            if not members:
                _strange.add(group)
            return group, store
        wanted.append(str(backend))
        kwargs["device_id"] = None  # torch would connect NCCL a second time
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
    """Tell whether a cell has replaced the world that we hand out by one of its own."""
    return dist.group.WORLD in _strange


def known_groups() -> list[tuple[torch.distributed.ProcessGroup, str, list[int], str]]:
    """Return every group of this process in the order of creation: group, name, members, backend."""
    world = c10d._world
    return [
        (group, world.pg_names[group], sorted(world.pg_group_ranks[group]), str(world.pg_map[group][0]))
        for group in world.pg_map
    ]


def join_group(name: str, members: list[int], backend: str, timeout: timedelta) -> torch.distributed.ProcessGroup:
    """Make a group with a given name in place of torch's choice; all members must call this or already have it."""
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
    """Tell whether torch knows a group, or the world's for None; it does not know a destroyed one."""
    return bool(dist.is_initialized() if group is None else group in c10d._world.pg_map)


def keep_all() -> None:
    """Let torch end no group when it next forgets all, in a child of the process that has made them.

    Their ends would wait for threads that are no more, or tell the other members of it.
    """
    _left.extend(c10d._world.pg_map)
    c10d._world.pg_names.clear()  # torch shuts down those that have a name


_left: list[torch.distributed.ProcessGroup] = []
"""Groups of the parent of this process."""


def is_starting_processes() -> bool:
    """Return whether `torch.multiprocessing.start_processes` runs on this thread."""
    code = start_processes.__code__
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


def group_count() -> int:
    """Return how many names of groups this process has used."""
    return int(c10d._world.group_count)


def set_group_count(count: int) -> None:
    """Set the number of used names, so that the next group gets the same name as on the other ranks."""
    c10d._world.group_count = count
