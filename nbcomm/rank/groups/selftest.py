"""What torch reports of a process group, compared with the truth.

Torch's versions differ in where they take a group's rank and size from. If that is not where nbcomm put them, each rank
is a world of its own, in which a reduction reduces nothing and raises nothing: torch 2.14 did so once. So nothing is
trusted. Each group's numbers are compared when it is formed, and in each generation one small collective over the world
must give the right value on every rank before a cell can use it.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from ...errors import SelfTestError
from ...torch_internals import process_groups


def compare(what: str, found: tuple[int, int], true: tuple[int, int]) -> None:
    """Compare an object's rank and size with those that it was given.

    Args:
        what: the object, in words.
        found: its rank and size.
        true: the intended values.

    Raises:
        SelfTestError: they differ.
    """
    if found != true:
        raise SelfTestError(
            f"torch {torch.__version__} reports that {what} is rank {found[0]} of {found[1]}, "
            f"but it was created as rank {true[0]} of {true[1]}."
        )


def compare_world(rank: int, size: int) -> None:
    """Compare the world that ``torch.distributed`` reports with the true one.

    Raises:
        SelfTestError: they differ.
    """
    compare("this process", (dist.get_rank(), dist.get_world_size()), (rank, size))
    world = dist.group.WORLD
    if world is None:
        raise SelfTestError(f"torch {torch.__version__} has no world group after init_process_group.")
    compare("the world's group", (world.rank(), world.size()), (rank, size))


def compare_hold(*, handed_out: bool, connected: bool) -> None:
    """Check that waits can be ended and groups re-formed.

    Args:
        handed_out: torch has handed out a group of nbcomm's.
        connected: gloo's connections were found among the sockets of this process.

    Raises:
        SelfTestError: one of the two is missing.
    """
    if not handed_out:
        raise SelfTestError(f"torch {torch.__version__} creates its process groups where nbcomm does not find them.")
    if not connected:
        raise SelfTestError(f"torch {torch.__version__} connects gloo by sockets that nbcomm does not find.")


def reduce_world(rank: int, size: int, device: torch.device) -> None:
    """Reduce two numbers over the world, and check the sums; every rank must call this.

    Raises:
        SelfTestError: the sums are wrong.
    """
    kinds = process_groups.devices_of(str(dist.get_backend_config()))
    # On the CPU if that is possible: a GPU that no cell has used yet keeps its memory.
    found = torch.tensor([1, rank], device="cpu" if "cpu" in kinds else device)
    dist.all_reduce(found)
    true = [size, size * (size - 1) // 2]
    if found.tolist() != true:
        raise SelfTestError(f"torch {torch.__version__} gives {found.tolist()} where all_reduce must give {true}.")
