"""NCCL without a GPU: a backend that meets its members outside the store, hangs, and is aborted, as torch's does.

What it is like was read in torch's `ProcessGroupNCCL.cpp`:

- to connect is to wait for all members, and nothing ends that wait, for torch aborts only communicators that are there;
- a call waits on the device until it is aborted, which frees it only if the backend is connected;
- an abort may wait for what other groups do on the device, and may never return.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from nbcomm.torch_internals import nccl

BACKEND = "cpu:gloo,cuda:nccl"
"""What a group of it is asked for by."""

_TICK = 0.002


class FakeNccl(dist.ProcessGroupGloo):
    """The backend; C++ sees a gloo that is alone.

    Attributes:
        made: all that this process has made, in order.
        gpu: what it is connected for; None before.
        connections: how many communicators it has made.
        aborted: it was, when it was connected.
        hold: its abort returns only when this is set.
    """

    supports_splitting = True
    folder = ""
    late: threading.Event | None = None
    """This rank comes to connect only when it is set; None: it comes at once."""
    made: list[FakeNccl] = []  # noqa: RUF012 - one process is one rank

    def __init__(self, name: str, rank: int, members: list[int], gloo: Any) -> None:
        options = dist.ProcessGroupGloo._Options()
        options._devices, options._threads = gloo, 1
        super().__init__(dist.HashStore(), 0, 1, options)
        self.me, self.members, self.called = rank, members, name
        self.gpu: torch.device | None = None
        self.connections = 0
        self.aborted = threading.Event()
        self.aborts = 0
        self.hold = threading.Event()
        self.hold.set()
        self.made.append(self)
        self.turn = sum(other.called == name for other in self.made)

    def _place(self, rank: int) -> Path:
        return Path(self.folder) / f"nccl-{self.called}-{self.turn}-{rank}"

    def eager_connect_single_device(self, gpu: torch.device) -> None:
        """Wait for all members, whatever happens."""
        if self.late is not None:
            self.late.wait()
        self._place(self.me).touch()
        while not all(self._place(rank).exists() for rank in range(len(self.members))):
            time.sleep(_TICK)
        self.gpu = gpu
        self.connections += 1

    def abort(self) -> None:
        """End what waits, if there is a communicator."""
        self.aborts += 1
        if self.gpu is not None:
            self.aborted.set()
        self.hold.wait()

    def hang(self) -> None:
        """Wait for ranks that never come."""
        while not self.aborted.is_set():
            time.sleep(_TICK)
        raise dist.DistBackendError("NCCL communicator was aborted on rank 0.")


def put_in_place(folder: str) -> None:
    """Let the groups of this process have it."""
    device = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    FakeNccl.folder, FakeNccl.late, FakeNccl.made = folder, None, []
    nccl.check_built_in = lambda: None
    nccl.make = lambda store, rank, size, name, members: FakeNccl(name, rank, members, device)
