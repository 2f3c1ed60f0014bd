"""Descriptors that a rank keeps for itself, for a cell may use up all.

Gloo ends the process where it cannot accept a connection, so without them the forming of groups, after a cell has
opened files until it could not, would cost the rank and its variables.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_KEPT = 48


class Reserve:
    """Descriptors of the null device, which are closed where nbcomm needs some."""

    def __init__(self) -> None:
        self._kept: list[int] = []
        self._fill()

    def _fill(self) -> None:
        with suppress(OSError):  # there are fewer then
            while len(self._kept) < _KEPT:
                self._kept.append(os.open(os.devnull, os.O_RDONLY))

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Let the block have them."""
        while self._kept:
            os.close(self._kept.pop())
        try:
            yield
        finally:
            self._fill()
