"""How a measurement calls its functions on the ranks."""

from __future__ import annotations

from typing import Any

from ..execution import named_calls
from ..execution.named_calls import World

_LIMIT = 120.0
"""Seconds that one call may take."""


def on_ranks(world: World, function: str, *args: Any, ranks: list[int] | None = None) -> list[Any]:
    """Call a function of `nbcomm.measures` on ranks, and return what each has returned; see `named_calls.call`."""
    returned, _ = named_calls.call(world, f"nbcomm.measures.{function}", args, ranks, _LIMIT)
    return returned
