"""The process group of this rank: how it is formed. The one owner of torch's private interfaces."""

from __future__ import annotations

import os
import random
import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from ..messages import Form, Place
from .comm import Communicator
from .store import StoreServer, UnixStore


class World:
    """This rank's membership in the world."""

    def __init__(self) -> None:
        self.place: Place | None = None
        self.comm: Communicator | None = None
        self._server: StoreServer | None = None
        self._store: UnixStore | None = None

    def form(self, order: Form) -> Communicator:
        """Take a place and join the process group; every rank of the world must be told to.

        Args:
            order: the place, the generation, and the store's socket. Rank 0 serves the store.

        Returns:
            The communicator over the whole world.
        """
        place = order.place
        self._become(place, order)
        path = Path(order.store)
        if place.rank == 0:
            self._server = StoreServer(path)
        self._store = UnixStore(path, order.timeout)
        device = torch.device(place.device)
        dist.init_process_group(
            place.backend,
            store=self._store,
            rank=place.rank,
            world_size=place.world_size,
            timeout=timedelta(seconds=order.timeout),
            # Binding lets NCCL connect at once, and errors name the GPU. gloo takes no device.
            device_id=device if device.type == "cuda" and "nccl" in place.backend else None,
        )
        self.place = place
        self.comm = Communicator(
            rank=place.rank,
            world_size=place.world_size,
            local_rank=place.local_rank,
            node_rank=place.node_rank,
            local_world_size=place.local_world_size,
            device=device,
        )
        return self.comm

    def _become(self, place: Place, order: Form) -> None:
        os.environ.update(torchrun_environment(place, order.master_addr, order.master_port))
        # gloo listens where the hostname resolves, often on every interface: name the loopback one.
        os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
        os.environ["OMP_NUM_THREADS"] = str(place.threads)
        torch.set_num_threads(place.threads)
        if place.device.startswith("cuda"):
            torch.cuda.set_device(torch.device(place.device))
        seed_differently()


def torchrun_environment(place: Place, address: str, port: int) -> dict[str, str]:
    """Return the environment variables that torchrun would set, so that any library finds its rank."""
    return {
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.world_size),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.local_world_size),
        "NODE_RANK": str(place.node_rank),
        "GROUP_RANK": str(place.node_rank),
        "GROUP_WORLD_SIZE": str(place.nodes),
        "ROLE_RANK": str(place.rank),
        "ROLE_WORLD_SIZE": str(place.world_size),
        "ROLE_NAME": "default",
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }


def seed_differently() -> None:
    """Seed torch, NumPy and `random` from the system: forked ranks would all draw the same numbers."""
    torch.seed()
    random.seed()
    np.random.seed(int.from_bytes(os.urandom(4), "little"))  # noqa: NPY002 - it is the legacy state that is shared


def device_memory(device: torch.device) -> tuple[int, int]:
    """Return (used, total) bytes of this rank's GPU; zeros on the CPU or before the GPU was used."""
    if device.type != "cuda" or not torch.cuda.is_initialized():
        return 0, 0
    with suppress(RuntimeError):
        free, total = torch.cuda.mem_get_info(device)
        return total - free, total
    return 0, 0
