"""Lesson 2: what a collective costs. Latency, bandwidth, the ring and the tree."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .. import solutions
from ..compare import difference
from ..draw import Draw
from ..puzzle import Cell, FunctionPuzzle, Prediction, Trial

_RANKS = 64


class TimesLonger(Prediction):
    """How many times as long does an all_reduce of 1 MB take as one of 1 KB? Within a factor of two is near enough."""

    name = "times_longer"
    number = True
    because = "A small message costs its latency: a thousandth of the data takes far more of the time."

    def shown(self, variables: Mapping[str, Any], cell: Cell) -> Any:
        """Return what was measured."""
        return float(variables["times_longer"])

    def accepts(self, predicted: Any, shown: Any) -> bool:
        """Accept half and twice as much."""
        return isinstance(predicted, (int, float)) and shown / 2 <= predicted <= shown * 2


class Crossover(Prediction):
    """From how many bytes on is a ring faster than a tree on 64 ranks, with your own alpha and beta?"""

    name = "crossover"
    number = True
    because = (
        "The ring takes 2(N-1) steps of alpha, the tree 2 log2(N); the ring sends 2(N-1)/N of the data, the tree sends "
        "all of it 2 log2(N) times. They are equal where the steps that the tree saves are worth what it sends more."
    )

    def shown(self, variables: Mapping[str, Any], cell: Cell) -> Any:
        """Compute it from the learner's alpha (seconds) and beta (seconds a byte), which a fit has given."""
        alpha, beta = float(variables["alpha"]), float(variables["beta"])
        depth, ring = 2 * math.log2(_RANKS), 2 * (_RANKS - 1)
        return alpha * (ring - depth) / (beta * (depth - ring / _RANKS))

    def accepts(self, predicted: Any, shown: Any) -> bool:
        """Accept ten per cent more or less."""
        return not difference(predicted, shown, near=0.1)


class RingAllReduce(FunctionPuzzle):
    """Return the sum of the tensors of all ranks, on every rank; send only to the right, and receive from the left.

    Each rank sends 2 (N-1) messages of an N-th of the tensor.
    """

    asks = "ring_all_reduce(tensor)"
    hints = (
        "Cut the tensor into one part for each rank. In each step, every rank sends one part to the right.",
        "After N-1 steps in which a rank adds what comes to its own part, each rank has one part of the whole sum.",
        "N-1 more steps hand the finished parts around. In step s, which part did rank r finish, and which comes next?",
    )
    solution = solutions.text("costs")

    def given(self, draw: Draw, shared: Draw, rank: int, size: int) -> tuple[Any, ...]:
        """Return a vector whose length the ranks divide."""
        return (draw.tensor(size * shared.number(1, 6)),)

    def right(self, given: Sequence[tuple[Any, ...]], rank: int) -> Any:
        """Return the sum."""
        return torch.stack([tensor for (tensor,) in given]).sum(0)

    def complaint(self, trial: Trial) -> str:
        """Ask for a ring's messages, and for no collective."""
        if found := trial.only_messages():
            return found
        for rank, calls in enumerate(trial.calls):
            sent = [call for call in calls if call.sends]
            strange = [call.peer for call in sent if call.peer != (rank + 1) % trial.size]
            if strange:
                return f"rank {rank} sent to rank {strange[0]}, which is not on its right"
            steps, nbytes = 2 * (trial.size - 1), trial.given[rank][0].nbytes * 2 * (trial.size - 1) // trial.size
            if len(sent) != steps:
                return f"rank {rank} sent {len(sent)} messages, where {steps} are asked for"
            if sum(call.nbytes for call in sent) > nbytes:
                return f"rank {rank} sent {sum(call.nbytes for call in sent)} bytes, where {nbytes} are enough"
        return ""
