"""Collectives, by hand: a puzzle for each of those that lesson 1 leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .. import solutions
from ..draw import Draw
from ..puzzle import FunctionPuzzle, Trial

_SOLUTION = solutions.text("collectives")


class DealOut(FunctionPuzzle):
    """Rank 0 has numbers, two for each rank; return this rank's two, as a list. Use one scatter."""

    asks = "deal_out(numbers)"
    hints = (
        "scatter takes a list with one item for each rank. What is the item of rank 1?",
        "Only rank 0 can cut the list: numbers is None on the others, and what they pass is not looked at.",
    )
    solution = _SOLUTION

    def given(self, draw: Draw, shared: Draw, rank: int, size: int) -> tuple[Any, ...]:
        """Return the numbers on rank 0."""
        return ([draw.number() for _ in range(2 * size)] if rank == 0 else None,)

    def right(self, given: Sequence[tuple[Any, ...]], rank: int) -> Any:
        """Return two of them."""
        return given[0][0][2 * rank : 2 * rank + 2]

    def complaint(self, trial: Trial) -> str:
        """Ask for one scatter."""
        return trial.only(scatter=1)


class Sentence(FunctionPuzzle):
    """Each rank has a word. Return on rank 1 all words with blanks between them, and None on the other ranks."""

    asks = "sentence(word)"
    hints = (
        "Which collective brings the data of all ranks to one of them, and to no other?",
        "gather(word, dst=1) returns a list on rank 1. What does it return on the others?",
    )
    solution = _SOLUTION

    def given(self, draw: Draw, shared: Draw, rank: int, size: int) -> tuple[Any, ...]:
        """Return a word."""
        return (draw.word(),)

    def right(self, given: Sequence[tuple[Any, ...]], rank: int) -> Any:
        """Return the words on rank 1."""
        return " ".join(word for (word,) in given) if rank == 1 else None

    def complaint(self, trial: Trial) -> str:
        """Ask for one gather: no other rank needs the words."""
        return trial.only(gather=1)


class MeanOfAll(FunctionPuzzle):
    """The ranks have batches of different sizes. Return the mean of all samples, as a float, on every rank."""

    asks = "mean_of_all(batch)"
    hints = (
        "The mean of the means counts a sample of a small batch for more than one of a large batch.",
        "A mean is a sum divided by a number: which two numbers of each rank do you need?",
    )
    solution = _SOLUTION

    def given(self, draw: Draw, shared: Draw, rank: int, size: int) -> tuple[Any, ...]:
        """Return a vector with a length of its own."""
        return (draw.tensor(draw.number(1, 3) + 3 * rank),)

    def right(self, given: Sequence[tuple[Any, ...]], rank: int) -> Any:
        """Return the mean."""
        return torch.cat([batch for (batch,) in given]).mean().item()


class BestRank(FunctionPuzzle):
    """Return the number of the rank that has the smallest loss, on every rank."""

    asks = "best_rank(loss)"
    hints = (
        "all_reduce(loss, 'min') tells the smallest loss. Who has it?",
        "With all_gather every rank has all losses, in rank order.",
    )
    solution = _SOLUTION

    def given(self, draw: Draw, shared: Draw, rank: int, size: int) -> tuple[Any, ...]:
        """Return a loss that no other rank has."""
        return (draw.number(0, 99) + rank / size,)

    def right(self, given: Sequence[tuple[Any, ...]], rank: int) -> Any:
        """Return the rank of the smallest one."""
        losses = [loss for (loss,) in given]
        return losses.index(min(losses))


class RowNumbers(FunctionPuzzle):
    """The rows of all ranks are numbered from 0. Return the numbers of this rank's first and last row."""

    asks = "row_numbers(rows)"
    hints = (
        "How many rows come before those of this rank?",
        "scan adds up the values of the ranks below, and this rank's own; with exclusive=True without its own.",
    )
    solution = _SOLUTION

    def given(self, draw: Draw, shared: Draw, rank: int, size: int) -> tuple[Any, ...]:
        """Return how many rows there are."""
        return (draw.number(1, 9),)

    def right(self, given: Sequence[tuple[Any, ...]], rank: int) -> Any:
        """Return both numbers."""
        begin = sum(rows for (rows,) in given[:rank])
        return begin, begin + given[rank][0] - 1

    def complaint(self, trial: Trial) -> str:
        """Ask for one scan: no rank needs the rows of those above."""
        return trial.only(scan=1)


class SumOfColor(FunctionPuzzle):
    """Each rank has a color and a number. Return the sum of the numbers of all ranks with this rank's color."""

    asks = "sum_of_color(color, number)"
    hints = (
        "split_group makes a group of the ranks that pass the same color.",
        "Most collectives take group=..., and then only its ranks take part.",
    )
    solution = _SOLUTION

    def given(self, draw: Draw, shared: Draw, rank: int, size: int) -> tuple[Any, ...]:
        """Return one of two colors, and a number."""
        return draw.choice(("red", "blue")), draw.number()

    def right(self, given: Sequence[tuple[Any, ...]], rank: int) -> Any:
        """Return the sum."""
        return sum(number for color, number in given if color == given[rank][0])
