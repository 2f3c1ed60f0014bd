"""Calls of nbcomm's own functions on ranks, by their names: for a check of a puzzle, and for a chart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ...by_name import ByName, values
from ...protocol import CallRecord


class World(Protocol):
    """What such a call needs of a `Session`."""

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


def call(  # noqa: PLR0913 - what a trial has
    world: World, path: str, args: Sequence[Any], ranks: list[int] | None, limit: float, *, quiet: bool = True
) -> tuple[list[Any], list[list[CallRecord]]]:
    """Call a function on ranks; return what each has returned, and which collectives it has called.

    Args:
        world: where they are.
        path: the function's module and name.
        args: its arguments.
        ranks: who calls it; None for all.
        limit: seconds that it may take.
        quiet: show nothing of what it prints.

    Raises:
        SteeringError: it refuses, in a sentence.
        CellError: it failed.
        TimeoutError: it took longer, and was interrupted.
    """
    answers, calls = world.trial(ByName(path), args, ranks, limit, quiet=quiet)
    return values(answers), calls
