"""The environment of a rank's process, and the memory of its device."""

from __future__ import annotations

import os
import random
import socket
import sys
from contextlib import suppress
from typing import NamedTuple

import numpy.random  # by name: else it is imported, by each rank after its fork, when it is first used
import psutil
import torch

from ...errors import StartError
from ...protocol import RankPlacement
from ...protocol.common import LOOPBACK


def torchrun_environment(place: RankPlacement, address: str, port: int) -> dict[str, str]:
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


def interface_of(address: str) -> str:
    """Return the network interface of this machine that has an address.

    Raises:
        StartError: none has.
    """
    if address == LOOPBACK:
        return "lo0" if sys.platform == "darwin" else "lo"
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address.partition("%")[0] == address for one in addresses):
            return str(name)
    raise StartError(f"No network interface of {socket.gethostname()} has the address {address}.")


def seed_differently() -> None:
    """Seed torch, NumPy and `random` from the system: forked ranks would all draw the same numbers."""
    if torch.accelerator.is_available():
        torch.seed()
    else:  # for each kind of accelerator that is not there, it would keep a whole stack, until there is one
        torch.default_generator.seed()
    random.seed()
    numpy.random.seed(int.from_bytes(os.urandom(4), "little"))  # noqa: NPY002 - it is the legacy state that is shared


class Gpu(NamedTuple):
    """What is known of a rank's GPU; memory in bytes.

    Attributes:
        used: by all processes.
        total: that it has.
        name: such as "NVIDIA H200".
        allocated: what this process's tensors have.
        reserved: what torch keeps for them.
    """

    used: int = 0
    total: int = 0
    name: str = ""
    allocated: int = 0
    reserved: int = 0


def gpu(device: torch.device) -> Gpu:
    """Return what is known of this rank's GPU: nothing on the CPU, before it was used, or where it has failed."""
    if device.type == "cuda" and torch.cuda.is_initialized():
        with suppress(RuntimeError):
            free, total = torch.cuda.mem_get_info(device)
            kept = torch.cuda.memory_stats(device)  # all of it is made for each figure that torch tells by itself
            figures = (int(kept.get(f"{what}_bytes.all.current", 0)) for what in ("allocated", "reserved"))
            return Gpu(total - free, total, torch.cuda.get_device_name(device), *figures)
    return Gpu()
