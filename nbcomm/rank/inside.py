"""Torch's private interfaces: all that nbcomm uses of them is in this module, and is checked once at start.

What they are needed for, and why no public way does:

* A rank that waits in a gloo collective cannot be freed: no abort of torch's reaches it. Shutting the sockets
  of the connections does, within milliseconds. So gloo gets an address of its own, by which its sockets are
  told from all others (`gloo_options`, `shut_connections`).
* A process group cannot be formed again: everybody who holds it (a subgroup in a variable, a DeviceMesh, DDP,
  FSDP) would hold a dead one. So what torch hands out is a process group of ours (`group.RankGroup`) that
  passes every call on to one of torch's, which can be replaced (`hand_out`, `new_inner`).
* Who waits for what is seen at `Work.wait` (`watch_waits`) and in ``new_group`` (`watch_new_groups`).

`self_check` tells why this version of torch cannot be used so. Then the world falls back to torch's own groups:
they are destroyed and initialised anew after an abort, and handles made before are lost.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import socket
import stat
import sys
import weakref
import zlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlparse

import torch
import torch.distributed
import torch.distributed.distributed_c10d

# Torch's stubs know little of what is used here, and its versions differ: what is there is seen at run time.
dist: Any = torch.distributed
c10d: Any = torch.distributed.distributed_c10d
_C: Any = torch._C._distributed_c10d

PLUGIN = "nbcomm"
"""The name under which torch knows the maker of our groups; users see the backend's true name."""

PASSED_ON = (
    "_allgather_base",
    "_reduce_scatter_base",
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "barrier",
    "broadcast",
    "gather",
    "monitored_barrier",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "scatter",
    "send",
)
"""The methods of a process group through which data moves; which of them exist depends on torch's version."""

_NEEDED_FROM_CPP = ("allgather", "allreduce", "broadcast")
"""What C++ (DDP's reducer, functional collectives) calls, and must find in a group written in Python."""

_CONNECT = 10.0
"""Seconds that gloo's connections may take to form, once all members are there; they take hundredths."""

_OURS = ("gloo", "nccl")
"""Backends that our groups can hold."""


def self_check() -> str:
    """Say why this torch cannot hand out our groups; an empty text if it can."""
    if not dist.is_available() or not dist.is_gloo_available():
        return "this torch has no gloo"
    missing = [
        name
        for owner, names in (
            (c10d, ("_new_process_group_helper", "_world", "BackendConfig", "_new_group_with_tag")),
            (dist.ProcessGroup, ("_register_backend", "_set_default_backend", "_get_backend", *_NEEDED_FROM_CPP)),
            (_C, ("Work", "FakeProcessGroup")),
            (dist.ProcessGroupGloo, ("create_device", "_Options", "_set_default_timeout")),
            (dist.ProcessGroupGloo._Options, ("_devices", "_timeout", "_threads")),
        )
        for name in names
        if not hasattr(owner, name)
    ]
    if missing:
        return f"torch {torch.__version__} has no {', '.join(missing)}"
    try:
        _C.Work.wait = _C.Work.wait  # a class that takes no attributes cannot be watched
    except (AttributeError, TypeError):
        return f"torch {torch.__version__} does not let Work.wait be watched"
    return _try_a_group()


def _try_a_group() -> str:
    """Call a group written in Python from C++, once, in a world of one."""

    class Probe(torch.distributed.ProcessGroup):
        called = False

        def __init__(self) -> None:
            super().__init__(0, 1)  # type: ignore[call-arg]
            give_placeholder(self, ["cpu"])

        def getBackendName(self) -> str:  # noqa: N802 - torch's C++ name
            return "gloo"

        def allreduce(self, tensors: Any, *_: Any) -> Any:
            self.called = True
            future: torch.futures.Future[Any] = torch.futures.Future()
            future.set_result(tensors)
            return _C._create_work_from_future(future)

    probe = Probe()
    try:
        _C._register_process_group("nbcomm-probe", probe)
        functional = torch.ops._c10d_functional
        functional.wait_tensor(functional.all_reduce(torch.zeros(1), "sum", "nbcomm-probe"))
    except Exception as error:  # noqa: BLE001 - whatever goes wrong here would go wrong later
        return f"torch {torch.__version__} does not call process groups written in Python: {error}"
    finally:
        _C._unregister_process_group("nbcomm-probe")
    return "" if probe.called else f"torch {torch.__version__} does not call process groups written in Python"


# ── gloo's sockets ──────────────────────────────────────────────────────────────────────────────────


class GlooDevice:
    """The address on which this process's gloo connections are made, known by nothing else.

    Linux answers on all of 127/8, so a world takes an address of its own there. macOS answers on 127.0.0.1 only;
    there gloo's sockets are those that appear while a group forms.

    Args:
        name: the world's name; ranks of one world share the address, and two worlds hardly ever do.
        reserve: take an address of its own if the system has one.
    """

    def __init__(self, name: str, *, reserve: bool = True) -> None:
        reserved = reserve and sys.platform == "linux"
        digest = hash_of(name)
        # 127.64–127.191: far from 127.0.0.1 and from what resolvers take for themselves (127.0.0.53).
        self.address = (
            f"127.{64 + (digest >> 16) % 128}.{(digest >> 8) & 255}.{1 + digest % 254}" if reserved else "127.0.0.1"
        )
        self._noted: set[int] | None = None if reserved else set()
        self._device: Any = None

    def options(self, timeout: timedelta) -> Any:
        """Options for a `ProcessGroupGloo` on this address."""
        if self._device is None:
            self._device = dist.ProcessGroupGloo.create_device(hostname=self.address)
        options = dist.ProcessGroupGloo._Options()
        options._timeout = timeout
        options._devices = [self._device]  # one for all groups: each would bring a thread and descriptors
        return options

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """While a group forms, note which sockets appear, if the address does not tell."""
        before = _descriptors() if self._noted is not None else set()
        try:
            yield
        finally:
            if self._noted is not None:
                self._noted |= _descriptors() - before

    def shut_connections(self) -> int:
        """Shut every gloo connection of this process: whoever waits on one, at either end, gets an error.

        The sockets are shut and never closed: they are gloo's, which closes them itself.

        Returns:
            How many were shut.
        """
        shut = 0
        for number in self._noted if self._noted is not None else _descriptors():
            with contextlib.suppress(OSError):
                shut += self._shut(number)
        if self._noted is not None:
            self._noted.clear()
        return shut

    def _shut(self, number: int) -> bool:
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            return False
        duplicate = os.dup(number)
        try:
            connection = socket.socket(fileno=duplicate)
        except OSError:
            os.close(duplicate)
            raise
        with connection:
            if connection.family != socket.AF_INET or connection.type != socket.SOCK_STREAM:
                return False
            # A listening socket has no peer, which raises: it stays, for gloo ends the process without it.
            if self.address not in (connection.getpeername()[0], connection.getsockname()[0]):
                return False
            # For reading only: gloo notices at once, and closes it. But a write of its own that failed before that,
            # in answer to the other end, it would forget, and with it whoever waits for that message.
            connection.shutdown(socket.SHUT_RD)
            return True


def hash_of(text: str) -> int:
    """A number of 32 bits from a text, the same in every process."""
    return zlib.crc32(text.encode())


def _descriptors() -> set[int]:
    folder = Path("/proc/self/fd") if sys.platform == "linux" else Path("/dev/fd")
    return {int(entry.name) for entry in folder.iterdir()}


# ── groups ──────────────────────────────────────────────────────────────────────────────────────────


@functools.cache
def _gloo_alone() -> Any:
    """A gloo backend that knows nobody else."""
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._threads = 1
    return dist.ProcessGroupGloo(dist.HashStore(), 0, 1, options)


def give_placeholder(group: torch.distributed.ProcessGroup, devices: list[str]) -> None:
    """Register what C++ wants to see registered; no data ever goes through it.

    DDP's logger asks the default backend of a group called "gloo" for what only gloo has: it gets one that knows
    nobody. Whatever would send data through the devices' backends meets one that raises.
    """
    kind = dist.ProcessGroup.BackendType
    group._set_default_backend(kind.GLOO)
    group._register_backend(torch.device("meta"), kind.GLOO, _gloo_alone())
    fake = _C.FakeProcessGroup
    options = fake.Options()
    if hasattr(options, "error_on_collective"):
        options.error_on_collective = True
    backend = fake._create_internal(group.rank(), group.size(), options)
    for device in devices:
        group._register_backend(torch.device(device), kind.CUSTOM, backend)


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
    is given here is also its limit for messages, but not for collectives: see `Record.wait`.)
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
            made[kind]._set_sequence_number_for_group()
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


def meet_in(store_of: Callable[[], Any]) -> None:
    """From now on ``init_process_group`` without a store of its own (``env://``) meets in what ``store_of`` returns.

    Torch would open a TCPStore on rank 0: a port that others may reach, and one that a second call takes again while
    the first one's server may still answer there. Where ``store_of`` returns None, torch does that.
    """
    # By its full name: in the package that name is a function.
    handlers = getattr(sys.modules.get("torch.distributed.rendezvous"), "_rendezvous_handlers", None)
    if handlers is None or "env" not in handlers:
        return
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


_PLACE = ("rank", "world_size")


def hand_out(make: Callable[..., torch.distributed.ProcessGroup]) -> None:
    """From now on, whatever asks torch for a process group of gloo or NCCL gets what ``make`` returns.

    ``make(backend, rank, size, timeout, name, members)`` is called on the members only.
    """
    plain = c10d._new_process_group_helper
    wanted: list[str] = []

    def create(options: Any, _: Any) -> torch.distributed.ProcessGroup:
        return make(
            wanted[-1],
            options.group_rank,
            options.group_size,
            options.timeout,
            options.group_id,
            list(options.global_ranks_in_group) or list(range(options.group_size)),
        )

    @functools.wraps(plain)
    def helper(size: Any, rank: Any, members: Any, backend: Any, *args: Any, **kwargs: Any) -> Any:
        kinds = set(c10d.BackendConfig(c10d.Backend(backend)).get_device_backend_map().values())
        if not kinds <= set(_OURS):
            return plain(size, rank, members, backend, *args, **kwargs)
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
    c10d._new_process_group_helper = helper


def known_groups() -> list[tuple[torch.distributed.ProcessGroup, str, list[int], str]]:
    """Every group of this process in the order in which they were made: group, name, members, backend."""
    world = c10d._world
    return [
        (group, world.pg_names[group], sorted(world.pg_group_ranks[group]), str(world.pg_map[group][0]))
        for group in world.pg_map
    ]


def join_group(name: str, members: list[int], backend: str, timeout: timedelta) -> None:
    """Make a group that the other members have had for long, under the name that they know it by."""
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


def is_known(group: torch.distributed.ProcessGroup | None) -> bool:
    """Whether torch knows a group, or for None the world's: one that was destroyed it does not."""
    return bool(dist.is_initialized() if group is None else group in c10d._world.pg_map)


def group_count() -> int:
    """How many names for groups this process has given away."""
    return int(c10d._world.group_count)


def set_group_count(count: int) -> None:
    """Give the next group the name that the other ranks will give it."""
    c10d._world.group_count = count


# ── seeing who waits ────────────────────────────────────────────────────────────────────────────────


def watch_waits(around: Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]) -> None:
    """Have every ``work.wait(…)`` that Python calls go through ``around(wait, work, args, kwargs)``."""
    plain = _C.Work.wait

    @functools.wraps(plain)
    def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        return around(plain, work, args, kwargs)

    _C.Work.wait = wait


def watch_new_groups(around: Callable[[Callable[..., Any], Any, dict[str, Any]], Any]) -> None:
    """Have every making of a group go through ``around(make, ranks, kwargs)``; ``ranks`` may be None for all."""
    plain = c10d._new_group_with_tag

    @functools.wraps(plain)
    def new_group(ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        return around(functools.partial(plain, ranks, *args, **kwargs), ranks, kwargs)

    c10d._new_group_with_tag = new_group


# ── what holds on to an interrupted collective ──────────────────────────────────────────────────────

_ddp_modules: weakref.WeakSet[Any] = weakref.WeakSet()


def follow_modules() -> None:
    """From now on, know every DDP module that is made."""
    from torch.nn.parallel import DistributedDataParallel

    plain = DistributedDataParallel.__init__

    @functools.wraps(plain)
    def init(self: Any, /, *args: Any, **kwargs: Any) -> None:  # it may be called with module=
        plain(self, *args, **kwargs)
        _ddp_modules.add(self)

    DistributedDataParallel.__init__ = init  # type: ignore[method-assign,assignment]


def reset_interrupted_modules() -> None:
    """Let DDP and FSDP modules begin anew after an abort inside their forward or backward.

    Without it FSDP's ranks issue different collectives. DDP may still wait for gradients of the backward that was cut
    short; worse, where the abort hit while the ranks agreed on new buckets, some have them and some have not, and the
    gradients of one parameter would be added to those of another. Every rank of a module's group must do so.
    """
    for module in list(_ddp_modules):
        _new_reducer(module)
    fsdp = sys.modules.get("torch.distributed.fsdp")
    module_type = getattr(fsdp, "FSDPModule", None)
    # fully_shard makes a subclass for each class of modules that it wraps: none means that it was never called
    if module_type is None or not module_type.__subclasses__() or not hasattr(module_type, "reset_iter_state"):
        return
    for found in gc.get_objects():
        # type(), for isinstance would ask proxies, which may answer by computing something
        if issubclass(type(found), module_type):
            with contextlib.suppress(Exception):  # only roots may be reset; torch refuses the others
                found.reset_iter_state()


def _new_reducer(module: Any) -> None:
    """Give a DDP module the buckets that it began with, as torch does for one that was unpickled."""
    try:
        module.reducer._remove_autograd_hooks()
        module._has_rebuilt_buckets = False
        parameters, sparse = module._build_params_for_reducer()
        names = module._build_debug_param_to_name_mapping(parameters)
        module._ddp_init_helper(parameters, sparse, names, module.static_graph)
        for hook, state in getattr(module, "_comm_hooks", ()):
            dist._register_comm_hook(module.reducer, state, hook)
        if module.static_graph:
            module.reducer._set_static_graph()
            module.logger._set_static_graph()
    except AttributeError:  # another version of torch: what is left is to forget the last backward
        module.reducer._reset_state()
