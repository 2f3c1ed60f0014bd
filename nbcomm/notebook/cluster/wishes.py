"""The properties of a world that its user asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Progress = Callable[[str, int, int], None]
"""Called with the start's current step, the number of ready ranks, and the number of all."""


@dataclass(frozen=True)
class Wishes:
    """The user's request.

    Attributes:
        n: number of ranks; None for one per GPU; without a GPU 4, or 2 on a machine with one core.
        device: "auto", "cpu" or "cuda".
        backend: a `torch.distributed` backend in place of the one that suits the device.
        timeout: time limit of the start, in seconds.
        grace: seconds that the world lives on when its notebook has died.
        name: the notebook's name for the world; empty for the default one.
        nodes: on how many nodes the ranks are, if all of them are on this machine.
        engines: what starts the processes: "local" or "ssh".
        hosts: for ssh, the machines, each with its number of ranks: "a:4,b:4".
        python: the interpreter on those machines; by default this one's path.
        address: of this machine, where those reach it; by default that of the route to the first.
    """

    n: int | None = None
    device: str = "auto"
    backend: str | None = None
    timeout: float = 120.0
    grace: float = 60.0
    name: str = ""
    nodes: int = 1
    engines: str = "local"
    hosts: str = ""
    python: str = ""
    address: str = ""
