"""Random inputs of a puzzle, alike on all ranks: each rank can draw what the others have drawn."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

_T = TypeVar("_T")

_WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath", "inlet", "jade", "kelp", "larch")


class Draw:
    """What one rank of one trial draws.

    Args:
        seed: of the trial.
        rank: whose input it is; what all ranks share is drawn with -1.
    """

    def __init__(self, seed: int, rank: int) -> None:
        self._random = random.Random(f"{seed}/{rank}")  # noqa: S311 - inputs, and no secrets
        self._generator = torch.Generator().manual_seed(self._random.getrandbits(62))

    def number(self, lowest: int = 0, highest: int = 99) -> int:
        """Return a whole number of this range, whose ends are in it."""
        return self._random.randint(lowest, highest)

    def choice(self, among: Sequence[_T]) -> _T:
        """Return one of these."""
        return self._random.choice(among)

    def word(self) -> str:
        """Return a word."""
        return self.choice(_WORDS)

    def tensor(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return a tensor on the CPU: normally distributed, or of whole numbers from -9 to 9."""
        if dtype.is_floating_point:
            return torch.randn(*shape, generator=self._generator, dtype=dtype)
        return torch.randint(-9, 10, shape, generator=self._generator, dtype=dtype)

    def value(self) -> Any:
        """Return anything: a number, a word, a list or a tensor."""
        kinds: list[Callable[[], Any]] = [self.number, self.word, self._pair, lambda: self.tensor(3)]
        return self.choice(kinds)()

    def _pair(self) -> list[Any]:
        return [self.number(), self.word()]
