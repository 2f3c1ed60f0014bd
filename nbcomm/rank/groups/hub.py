"""What a process group needs of the world that it is part of."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist

from ...torch_internals.gloo_sockets import GlooSockets

if TYPE_CHECKING:
    from ..collectives.fingerprints import FingerprintBoard
    from ..collectives.flight_recorder import FlightRecorder


class Hub(Protocol):
    """What a group needs of the world that it is part of."""

    rank: int
    generation: int
    record: FlightRecorder
    board: FingerprintBoard | None
    gloo: GlooSockets
    gpu: torch.device
    """Where NCCL works for this rank, if it does."""
    alert: bool
    """Whether `object` has something to say."""

    def meeting_place(self, life: str) -> Any:
        """Return a store where the members of a group meet once; it is empty for the first of them."""

    def object(self, name: str, members: list[int], peer: int | None) -> None:
        """Raise what speaks against a call of this name."""

    def await_turn(self, group: dist.ProcessGroup) -> None:
        """Let the collectives of a group that go on beside the cell come first; every rank issues them alike."""

    def explain(self, error: BaseException) -> BaseException:
        """Return what to raise in place of an error of torch's."""

    def mismatch(self, members: list[int], number: int, said: dict[int, tuple[str, str]]) -> BaseException:
        """Return what to raise where ranks do different things; the world is told."""

    def ended(self) -> bool:
        """Return whether this generation of the groups has ended, so that nobody has to wait for others."""

    def split(self, name: str, members: list[int], backend: str, timeout: timedelta) -> dist.ProcessGroup | None:
        """Make a further group, which only its members do; None on other ranks."""
