"""How long collectives and messages take."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from ..comm import Communicator, torchrun

OPS: dict[str, Callable[[Communicator, torch.Tensor], Any]] = {
    "all_reduce": lambda comm, data: comm.all_reduce(data),
    "reduce": lambda comm, data: comm.reduce(data),
    "broadcast": lambda comm, data: comm.broadcast(data),
    "all_gather": lambda comm, data: comm.all_gather(data),
    "gather": lambda comm, data: comm.gather(data),
    "reduce_scatter": lambda comm, data: comm.reduce_scatter(data),
    "scatter": lambda comm, data: comm.scatter(data.reshape(comm.world_size, -1)),
    "all_to_all": lambda comm, data: comm.all_to_all([*data.reshape(comm.world_size, -1)]),
    "sendrecv": lambda comm, data: comm.sendrecv(
        data, (comm.rank + 1) % comm.world_size, (comm.rank - 1) % comm.world_size
    ),
}
"""What can be measured, by its name; each is one call."""


def of_op(op: str, nbytes: int, repeats: int) -> list[float]:
    """Return the seconds of each of some calls on this rank, after one that is not counted; every rank must call it.

    Args:
        op: one of `OPS`.
        nbytes: what each rank brings, a multiple of 4 times the number of ranks.
        repeats: the number of calls.
    """
    comm = torchrun.init()
    data = torch.zeros(nbytes // 4, device=comm.device)
    call = OPS[op]
    found = []
    for _ in range(repeats + 1):
        comm.barrier()
        found.append(_timed(lambda: call(comm, data), comm.device))
    return found[1:]


def of_message(pair: tuple[int, int], nbytes: int, repeats: int) -> float:
    """Return the seconds of a message between two ranks, half of the way there and back; both must call it.

    Args:
        pair: the two ranks.
        nbytes: the message's size.
        repeats: of how many the best counts, after one that does not: the others tell how busy the machine is.
    """
    comm = torchrun.init()
    data = torch.zeros(nbytes // 4, device=comm.device)

    def there_and_back() -> None:
        if comm.rank == pair[0]:
            comm.send(data, pair[1])
            comm.recv(pair[1])
        else:
            comm.send(comm.recv(pair[0]), pair[0])

    there_and_back()
    return min(_timed(there_and_back, comm.device) for _ in range(repeats)) / 2


def of_copy(nbytes: int) -> float:
    """Return the seconds of a copy from memory to memory on this rank's device: the best of five."""
    device = torchrun.init().device
    source, target = (torch.zeros(nbytes, dtype=torch.uint8, device=device) for _ in range(2))
    return min(_timed(lambda: target.copy_(source), device) for _ in range(5))


def _timed(what: Callable[[], Any], device: torch.device) -> float:
    _settle(device)
    began = time.perf_counter()
    what()
    _settle(device)
    return time.perf_counter() - began


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
