"""What a measurement needs of a `Session`, and how it calls its functions on the ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ...by_name import ByName, values
from ...protocol import CallRecord

_LIMIT = 120.0
"""Seconds that one call may take."""


class World(Protocol):
    """What is needed of a `Session`."""

    @property
    def ranks(self) -> list[int]:
        """All ranks."""

    def trial(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        ranks: list[int] | None = None,
        limit: float = ...,
        *,
        quiet: bool,
    ) -> tuple[list[Any], list[list[CallRecord]]]:
        """Call a function; see `Commands.trial`."""


def on_ranks(world: World, function: str, *args: Any, ranks: list[int] | None = None) -> list[Any]:
    """Call a function of `nbcomm.measures` on ranks, and return what each has returned.

    Raises:
        TransferError: it refuses, in a sentence.
        CellError: it failed.
        TimeoutError: it took longer than two minutes.
    """
    answers, _ = world.trial(ByName(f"nbcomm.measures.{function}"), args, ranks, _LIMIT, quiet=True)
    return values(answers)
