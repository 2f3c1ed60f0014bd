"""NCCL in a group of ours: connected while all members meet, ended by nobody but us, and on all ranks alike.

A rank that is alone in the making of a communicator is freed by nothing: torch cannot abort what does not exist yet.
So each group makes its communicator when its members have just met, and not at its first call. And NCCL's own time
limits would end processes, while a rank sits at a breakpoint: here the notebook judges what hangs.

Read in torch 2.8 to 2.15 (`ProcessGroupNCCL.cpp`); not run on a GPU.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from .c10d import dist

SETTINGS = {
    # What has failed is cleaned up, and the process lives (CleanUpOnly).
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "2",
    # An error of CUDA, which is sticky, ends a thread of torch's, and not the process with its variables.
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    # No thread ends the process because another thread seems to be stuck.
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    # A dump makes a rank write into the store that the others dump, too, and then hold every call for a minute.
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",
    # Messages share the group's communicator, as a further one for two ranks could hang; torch would warn of that.
    "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING": "0",
    # NCCL's own service for questions takes them from everyone on the machine, at a port that two worlds would share.
    "NCCL_RAS_ENABLE": "0",
}
"""Variables that torch and NCCL read as a group is made, with what our groups need."""

_SHARED = {
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",  # from 2.30 on; else a second rank on a GPU is refused as a duplicate
    "NCCL_NVLS_ENABLE": "0",  # a GPU can join its switch's multicast once
}
"""Variables that NCCL reads, for ranks that share a GPU."""

_CTAS = 4
"""Blocks of NCCL's kernels on one GPU, of all ranks together: they wait for each other, so they must all fit."""

CONNECT = 60.0
"""Seconds in which a communicator must be made, after all members have met; it takes one or two for eight GPUs."""

PATIENCE = 30.0
"""Seconds that NCCL gets to let go of a device."""

_TICK = 0.005
_NEVER = timedelta(days=365)
_AGAIN = 1.0
"""Seconds after which an abort is repeated, if one is asked for: what was being made then is there now."""


def settings(sharing: int = 1) -> dict[str, str]:
    """Return the variables to set: of those that a rank needs, the ones that the user has not set by any name.

    Args:
        sharing: how many ranks are on this rank's GPU.
    """
    needed = SETTINGS if sharing == 1 else {**SETTINGS, **_SHARED, "NCCL_MAX_CTAS": str(max(1, _CTAS // sharing))}
    return {name: value for name, value in needed.items() if not os.environ.keys() & _names(name)}


def _names(name: str) -> set[str]:
    """Return the variables by which a user may have said something else."""
    return {name, name.removeprefix("TORCH_"), *(["NCCL_RAS_ADDR"] if name == "NCCL_RAS_ENABLE" else [])}


def version() -> str:
    """Return the version of the NCCL that this process has, such as "2.30.7"; "" without one, or with AMD's.

    Torch itself only tells with which one it was built.
    """
    if torch.version.hip or not dist.is_nccl_available():
        return ""
    number = ctypes.c_int()
    try:
        ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so")).ncclGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):  # it is a part of torch's library, and not found by name
        return ".".join(map(str, torch.cuda.nccl.version()[:3]))
    return f"{number.value // 10_000}.{number.value // 100 % 100}.{number.value % 100}"


def check_built_in() -> None:
    """Raise if this torch has no NCCL.

    Raises:
        RuntimeError: in torch's words.
    """
    if not dist.is_nccl_available():
        raise RuntimeError("Distributed package doesn't have NCCL built in")


def make(store: Any, rank: int, size: int, name: str, members: list[int]) -> Any:
    """Make the NCCL backend of a group, which is not connected yet.

    Args:
        store: where its members meet.
        rank: this rank's number in the group.
        size: how many they are.
        name: torch's name of the group.
        members: their global ranks, in group order.

    Raises:
        ValueError: there is no GPU, in torch's words.
    """
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = _NEVER
    options.global_ranks_in_group = members
    options.group_name = name
    return dist.ProcessGroupNCCL(store, rank, size, options)


def connect(backend: Any, gpu: torch.device) -> None:
    """Make the communicator of a backend for its GPU, with all members; this may never return."""
    backend.eager_connect_single_device(gpu)


def abort(backend: Any) -> None:
    """Abort a backend; this may never return."""
    with suppress(RuntimeError):  # it was aborted before
        backend.abort()


@contextmanager
def named(what: str) -> Iterator[None]:
    """Name what the block does, for Nsight and for torch's profiler."""
    if torch.version.cuda is not None:
        torch.cuda.nvtx.range_push(what)
    try:
        with torch.profiler.record_function(what) if torch.autograd.profiler._is_profiler_enabled else nullcontext():
            yield
    finally:
        if torch.version.cuda is not None:
            torch.cuda.nvtx.range_pop()


def mark() -> Any:
    """Mark the end of what this thread has queued on its GPU; see `is_done`. None while a graph is captured."""
    if torch.cuda.is_current_stream_capturing():  # to ask for its end would end the capture
        return None
    event = torch.cuda.Event()
    event.record()
    return event


def is_done(mark: Any) -> bool:
    """Return whether the GPU has come to a mark; also where it has failed, for whoever uses it next is told."""
    try:
        return bool(mark.query())
    except RuntimeError:
        return True


class Aborts:
    """The ends of NCCL backends, each on a thread of its own.

    One after the other they could wait for each other: an abort may wait for all that the device does, and that is
    what another group hangs in. And whoever asks for them must not wait, because an abort may never return.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun: weakref.WeakKeyDictionary[Any, tuple[threading.Thread, float]] = weakref.WeakKeyDictionary()

    def begin(self, backends: Iterable[Any]) -> None:
        """Begin to abort backends; one that is being aborted, or was just now, is left alone. Any thread."""
        with self._lock:
            now = time.monotonic()
            for backend in backends:
                thread, at = self._begun.get(backend, (None, 0.0))
                if thread is None or (not thread.is_alive() and now - at > _AGAIN):
                    thread = threading.Thread(target=abort, args=(backend,), name="nbcomm-abort", daemon=True)
                    self._begun[backend] = thread, now
                    thread.start()

    def wait(self, timeout: float) -> bool:
        """Wait until all that have begun have ended; return whether they have. Any thread; ■ ends it."""
        with self._lock:
            threads = [thread for thread, _ in self._begun.values()]
        deadline = time.monotonic() + timeout
        while any(thread.is_alive() for thread in threads):
            if time.monotonic() > deadline:
                return False
            time.sleep(_TICK)
        return True


def device_of(place: str, local_rank: int) -> torch.device:
    """Return the GPU that a rank's groups are bound to.

    Args:
        place: the rank's device: "cuda:1", or "cpu".
        local_rank: its number on its node, which is torch's own choice.
    """
    return torch.device(place) if place.startswith("cuda:") else torch.device("cuda", local_rank)
