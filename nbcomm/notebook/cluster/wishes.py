"""What a world shall be like, as its user asks for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Progress = Callable[[str, int, int], None]
"""Told what the start is doing, how many ranks are ready, and of how many."""


@dataclass(frozen=True)
class Wishes:
    """What the user asked for.

    Attributes:
        n: number of ranks; None for one per GPU; without a GPU 4, or 2 on a machine with one core.
        device: "auto", "cpu" or "cuda".
        backend: a `torch.distributed` backend in place of the one that suits the device.
        timeout: time limit of the start, in seconds.
        grace: seconds that the world lives on when its notebook has died.
        name: what the notebook calls the world; empty for the one that it uses where it names none.
    """

    n: int | None = None
    device: str = "auto"
    backend: str | None = None
    timeout: float = 120.0
    grace: float = 60.0
    name: str = ""
