"""The communicator in a script that torchrun started."""

from __future__ import annotations

import atexit
import os

import torch
import torch.distributed as dist

from ..errors import CollectiveError
from . import Communicator, lending

_NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")

current: Communicator | None = None
"""The communicator of this process, if it has one: a cell's, or an earlier `init`'s."""


def init() -> Communicator:
    """Join the process group; see `nbcomm.init`."""
    global current  # noqa: PLW0603 - a process has one default group, and so one communicator
    if current is not None and dist.is_initialized():
        lending.forgive()
        return current
    missing = [name for name in _NEEDED if name not in os.environ]
    if missing:
        raise CollectiveError(
            f"nbcomm.init() found no {', '.join(missing)} in the environment: "
            "start the script with torchrun --nproc-per-node N, or run the code in a %%distributed cell."
        )
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cpu")
    if torch.cuda.is_available() and local_rank < torch.cuda.device_count():
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" and dist.is_nccl_available() else "gloo"
        dist.init_process_group(backend, device_id=device if "nccl" in backend else None)
    if not lending.is_lent():
        world = dist.group.WORLD
        lending.lend(lambda: dist.group.WORLD is world, "This script")
        atexit.register(lending.leave)
    current = Communicator(
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        local_rank=local_rank,
        node_rank=int(os.environ.get("GROUP_RANK", "0")),
        local_world_size=int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"])),
        device=device,
    )
    return current
