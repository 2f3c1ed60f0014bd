"""Lesson 1: four processes, one program. Collectives are made of other collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .. import solutions
from ..draw import Draw
from ..puzzle import Cell, FunctionPuzzle, Prediction, Trial

_SOLUTION = solutions.text("four_processes")


class RanksWithSecret(Prediction):
    """Rank 0 alone runs secret = 7. How many of the four ranks have a variable secret afterwards?"""

    name = "ranks_with_secret"
    number = True
    because = "Each rank is a process with variables of its own."

    def shown(self, variables: Mapping[str, Any], cell: Cell) -> Any:
        """Return how many said that they have it."""
        return sum(variables["having"])


class PartOfRank2(Prediction):
    """Each of four ranks passes [0, 1, 2, 3] to reduce_scatter. What does rank 2 get?"""

    name = "part_of_rank_2"
    number = True
    because = "reduce_scatter adds up place by place, [0, 4, 8, 12], and rank 2 gets the part at place 2."

    def shown(self, variables: Mapping[str, Any], cell: Cell) -> Any:
        """Return what the experiment has collected from rank 2."""
        return variables["parts"][2]


class GatherAll(FunctionPuzzle):
    """Return the list of the values of all ranks, in rank order; use broadcast only."""

    asks = "gather_all(value)"
    hints = (
        "Each rank has one value, and must send it to all others: which collective sends from one rank to all?",
        "Every rank calls every broadcast, also those whose source it is not. What does it bring to those?",
        "broadcast(value, src=0) returns the value of rank 0 on every rank. How many sources are there?",
    )
    solution = _SOLUTION

    def given(self, draw: Draw, shared: Draw, rank: int, size: int) -> tuple[Any, ...]:
        """Return one value."""
        return (draw.value(),)

    def right(self, given: Sequence[tuple[Any, ...]], rank: int) -> Any:
        """Return the values of all."""
        return [value for (value,) in given]

    def complaint(self, trial: Trial) -> str:
        """Ask for one broadcast of each rank."""
        return trial.only(broadcast=trial.size)


class SumAll(FunctionPuzzle):
    """Return the sum of the tensors of all ranks, on every rank; use reduce_scatter and all_gather only."""

    asks = "sum_all(tensor)"
    hints = (
        "After reduce_scatter, what does each rank hold: the whole sum, or a part of it?",
        "The parts are in rank order. Which collective gives every rank the parts of all?",
        "all_gather stacks the parts; with mode='cat' it joins them end to end.",
    )
    solution = _SOLUTION

    def given(self, draw: Draw, shared: Draw, rank: int, size: int) -> tuple[Any, ...]:
        """Return a vector whose length the ranks divide."""
        return (draw.tensor(size * shared.number(1, 5)),)

    def right(self, given: Sequence[tuple[Any, ...]], rank: int) -> Any:
        """Return the sum."""
        return torch.stack([tensor for (tensor,) in given]).sum(0)

    def complaint(self, trial: Trial) -> str:
        """Ask for one of each."""
        return trial.only(reduce_scatter=1, all_gather=1)
