"""Puzzles in which the ranks train one tiny model, each on sums of its own."""

from __future__ import annotations

from typing import Any

import torch

from .compare import Parts
from .draw import Draw
from .puzzle import FunctionPuzzle
from .tiny import TinyLM


class TrainingPuzzle(FunctionPuzzle):
    """A puzzle whose `given` is the seed of a model, which is the same everywhere, and of this rank's sums."""

    def given(self, draw: Draw, shared: Draw, rank: int, size: int) -> tuple[Any, ...]:
        """Return both seeds."""
        return shared.number(0, 10**6), draw.number(0, 10**6)

    def arguments(self, given: tuple[Any, ...]) -> str:
        """Return the names of the arguments: they are made of the seeds, and too large to be read."""
        return self.asks.partition("(")[2].rstrip(")")


def small_model(seed: int, blocks: int = 2) -> TinyLM:
    """Return the same model for the same seed, without changing what anybody draws."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return TinyLM(blocks=blocks, width=16, heads=2)


def weights_of(model: torch.nn.Module) -> Parts:
    """Return copies of a model's weights, by their names."""
    return Parts({name: parameter.detach().clone() for name, parameter in model.named_parameters()})


def gradients_of(model: torch.nn.Module) -> Parts:
    """Return copies of the gradients of a model, by the names of its weights."""
    return Parts(
        {
            f"{name}.grad": None if parameter.grad is None else parameter.grad.clone()
            for name, parameter in model.named_parameters()
        }
    )
