"""Lesson 4: who sees which sample. Samplers, uneven tails, and exact metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .. import solutions
from ..compare import ANYTHING, shown
from ..draw import Draw
from ..puzzle import Cell, FunctionPuzzle, Prediction, Trial

_SOLUTION = solutions.text("samples")

_FEW = 9
"""Fewer samples may have the same order in two epochs by chance."""


class SamplesSeen(Prediction):
    """DistributedSampler deals range(10) out to four ranks. How many samples do they see in one epoch, altogether?"""

    name = "samples_seen"
    number = True
    because = "Ten is no multiple of four. So that all ranks have as many, two samples are seen twice."

    def shown(self, variables: Mapping[str, Any], cell: Cell) -> Any:
        """Return what the experiment has counted."""
        return variables["seen"]


class MyShare(FunctionPuzzle):
    """Return the list of this rank's indices in an epoch: all ranks together have each of range(length) once.

    No rank has more than one more than another, and the order is another one each epoch.
    """

    asks = "my_share(length, epoch)"
    collects = True
    hints = (
        "If all ranks shuffle in the same way, each can take its own part. What must they agree on?",
        "torch.Generator().manual_seed(n) shuffles alike wherever n is the same: torch.randperm(length, generator=…).",
        "order[rank::world_size] takes every world_size-th, beginning at rank.",
    )
    solution = _SOLUTION

    def given(self, draw: Draw, shared: Draw, rank: int, size: int) -> tuple[Any, ...]:
        """Return a length, and an epoch."""
        return shared.number(1, 50), shared.number(0, 99)

    def call(self, function: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        """Ask for two epochs, one after another."""
        length, epoch = given
        return [function(length, epoch), function(length, epoch + 1)]

    def right(self, given: Sequence[tuple[Any, ...]], rank: int) -> Any:
        """Return that it depends on the other ranks."""
        return ANYTHING

    def complaint(self, trial: Trial) -> str:
        """Look at the shares of all ranks together."""
        length, epoch = trial.given[0]
        for after in (0, 1):
            shares = [result[after] for result in trial.results]
            found = _wrong_shares(shares, length)
            if found:
                return f"for my_share({length}, {epoch + after}), {found}"
        if length >= _FEW and all(list(result[0]) == list(result[1]) for result in trial.results):
            return f"for my_share({length}, …), epochs {epoch} and {epoch + 1} have the same order"
        return ""


def _wrong_shares(shares: Sequence[Any], length: int) -> str:
    for rank, share in enumerate(shares):
        if not isinstance(share, (list, tuple)):
            return (
                f"rank {rank} returned the {type(share).__name__} {shown(share)}, where a list of numbers is asked for"
            )
        strange = next((type(index).__name__ for index in share if not isinstance(index, int)), "")
        if strange:
            return f"rank {rank} returned a list with a {strange} in it, where a list of numbers is asked for"
    seen = Counter(index for share in shares for index in share)
    unknown = sorted(set(seen) - set(range(length)))
    if unknown:
        return f"there is no sample {unknown[0]}"
    wrong = [index for index in range(length) if seen[index] != 1]
    if wrong:
        times = seen[wrong[0]]
        return f"sample {wrong[0]} is seen {f'{times} times' if times else 'by no rank'}"
    sizes = [len(share) for share in shares]
    if max(sizes) - min(sizes) > 1:
        return f"the shares have {', '.join(map(str, sizes))} samples"
    return ""


class Accuracy(FunctionPuzzle):
    """Return the accuracy over the samples of all ranks, as a number; use one collective.

    Ranks have different numbers of samples, and may have none.
    """

    asks = "accuracy(predicted, wanted)"
    hints = (
        "The mean of the ranks' means counts a sample of a small share for more. Which two numbers can be added up?",
        "One all_reduce can add up both: put them into one tensor.",
    )
    solution = _SOLUTION

    def given(self, draw: Draw, shared: Draw, rank: int, size: int) -> tuple[Any, ...]:
        """Return two vectors of classes; rank 0 has a sample in any case."""
        length = draw.number(1 if rank == 0 else 0, 9)
        made = [torch.tensor([draw.number(0, 2) for _ in range(length)], dtype=torch.int64) for _ in range(2)]
        return made[0], made[1]

    def right(self, given: Sequence[tuple[Any, ...]], rank: int) -> Any:
        """Return it of all samples together."""
        predicted, wanted = (torch.cat([each[place] for each in given]) for place in (0, 1))
        return float((predicted == wanted).float().mean())

    def complaint(self, trial: Trial) -> str:
        """Ask for one collective, whichever."""
        counts = [len(calls) for calls in trial.calls]
        rank = next((rank for rank, count in enumerate(counts) if count != 1), None)
        return "" if rank is None else f"rank {rank} called {counts[rank]} collectives, where one is enough"
