"""What torch says of a process group, compared with what is true of it.

Torch's versions differ in where they take a group's rank and size from. Where that is not where nbcomm put them, each
rank is a world of its own, in which a reduction reduces nothing and raises nothing: torch 2.14 did so once. So nothing
is taken for true. Each group's numbers are compared when it is formed, and in each generation one small collective over
the world must give the right value on every rank before a cell can use it.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from ...errors import SelfTestError
from ...torch_internals import process_groups


def compare(what: str, found: tuple[int, int], true: tuple[int, int]) -> None:
    """Compare the rank and the size that something has with those that it was given.

    Args:
        what: has them, in words.
        found: its rank and size.
        true: what they were made to be.

    Raises:
        SelfTestError: they differ.
    """
    if found != true:
        raise SelfTestError(
            f"torch {torch.__version__} reports that {what} is rank {found[0]} of {found[1]}, "
            f"but it was created as rank {true[0]} of {true[1]}."
        )


def compare_world(rank: int, size: int) -> None:
    """Compare what ``torch.distributed`` says of the world with what is true.

    Raises:
        SelfTestError: they differ.
    """
    compare("this process", (dist.get_rank(), dist.get_world_size()), (rank, size))
    world = dist.group.WORLD
    if world is None:
        raise SelfTestError(f"torch {torch.__version__} has no world group after init_process_group.")
    compare("the world's group", (world.rank(), world.size()), (rank, size))


def compare_hold(*, handed_out: bool, connected: bool) -> None:
    """Look at what ends a wait and forms groups anew: that there is something to take hold of.

    Args:
        handed_out: torch has handed out a group of ours.
        connected: gloo's connections are found where they are to be.

    Raises:
        SelfTestError: there is not.
    """
    if not handed_out:
        raise SelfTestError(f"torch {torch.__version__} creates its process groups where nbcomm does not find them.")
    if not connected:
        raise SelfTestError(f"torch {torch.__version__} does not connect gloo on the address that it was given.")


def reduce_world(rank: int, size: int, device: torch.device) -> None:
    """Reduce two numbers over the world, and look at the sums; every rank must call this.

    Raises:
        SelfTestError: the sums are wrong.
    """
    kinds = process_groups.devices_of(str(dist.get_backend_config()))
    # On the CPU where it is served: a GPU that no cell has used yet keeps its memory.
    found = torch.tensor([1, rank], device="cpu" if "cpu" in kinds else device)
    dist.all_reduce(found)
    true = [size, size * (size - 1) // 2]
    if found.tolist() != true:
        raise SelfTestError(f"torch {torch.__version__} gives {found.tolist()} where all_reduce must give {true}.")
