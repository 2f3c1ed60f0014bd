"""Lesson 8: a pipeline of ranks. Micro-batches, the bubble, GPipe and 1F1B."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .. import solutions
from ..compare import ANYTHING, Parts
from ..draw import Draw
from ..puzzle import Cell, FunctionPuzzle, Prediction, Trial
from ..training import gradients_of

_SOLUTION = solutions.text("pipelines")

_WIDTH, _MICRO = 4, 6


class Bubble(Prediction):
    """In a pipeline of 4 ranks with 4 micro-batches, all steps take as long. Which share of the time is a rank idle?"""

    name = "bubble"
    number = True
    because = "(p-1) / (m+p-1), with p ranks and m micro-batches: 3/7. More micro-batches make it smaller."

    def shown(self, variables: Mapping[str, Any], cell: Cell) -> Any:
        """Compute it, once the experiment has drawn its own."""
        micro, ranks = variables["micro"], variables["world_size"]
        return (ranks - 1) / (micro + ranks - 1)

    def accepts(self, predicted: Any, shown: Any) -> bool:
        """Accept two per cent of the time more or less."""
        return isinstance(predicted, (int, float)) and abs(predicted - shown) <= 0.02


def _stage(seed: int, number: int) -> torch.nn.Sequential:
    """Return one stage of the model."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + number)
        return torch.nn.Sequential(torch.nn.Linear(_WIDTH, _WIDTH), torch.nn.Tanh())


def _loss(y: torch.Tensor) -> torch.Tensor:
    return y.square().sum()


def _inputs(seed: int) -> list[torch.Tensor]:
    draw = Draw(seed, 0)
    return [draw.tensor(2, _WIDTH) for _ in range(_MICRO)]


class _Pipeline(FunctionPuzzle):
    """What both schedules have in common."""

    trials = 5
    collects = True

    def given(self, draw: Draw, shared: Draw, rank: int, size: int) -> tuple[Any, ...]:
        """Return the model's seed, this rank's stage, and how many there are."""
        return shared.number(0, 10**6), rank, size

    def arguments(self, given: tuple[Any, ...]) -> str:
        """Return their names: they are made of the seed, and too large to be read."""
        return self.asks.partition("(")[2].rstrip(")")

    def call(self, function: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        """Run one step; return the stage's gradients, and how many micro-batches were under way at most."""
        seed, rank, size = given
        stage, alive, most = _stage(seed, rank), 0, 0

        def forward(*_: Any) -> None:
            nonlocal alive, most
            alive += 1
            most = max(most, alive)

        def backward(*_: Any) -> None:
            nonlocal alive
            alive -= 1

        stage.register_forward_hook(forward)
        next(stage.parameters()).register_post_accumulate_grad_hook(backward)
        first, last = rank == 0, rank == size - 1
        function(stage, _inputs(seed) if first else [None] * _MICRO, _loss if last else None)
        return Parts(**gradients_of(stage), most=most)

    def right(self, given: Sequence[tuple[Any, ...]], rank: int) -> Any:
        """Return the gradients of the whole model, in one process."""
        seed = given[0][0]
        stages = [_stage(seed, number) for number in range(len(given))]
        for x in _inputs(seed):
            _loss(torch.nn.Sequential(*stages)(x)).backward()
        return Parts(**gradients_of(stages[rank]), most=ANYTHING)

    def complaint(self, trial: Trial) -> str:
        """Look whether rank 0 goes on before the first micro-batch is back, and ask for messages only."""
        most = trial.results[0]["most"]
        if trial.size > 1 and most < 2:
            return "rank 0 waits for each micro-batch to come back before it begins the next: nothing is in parallel"
        return trial.only_messages()


class GPipe(_Pipeline):
    """Train one step of a model whose stages are on different ranks: all micro-batches forward, then all backward.

    The function gets this rank's stage, a module; a list of inputs, which are tensors on rank 0 and None elsewhere; and
    the loss, a function of the last stage's output, which is None but on the last rank. It leaves each stage's
    gradients, added up over the micro-batches. A rank sends its output on at once, so that the next one can begin.
    """

    asks = "gpipe(stage, inputs, loss)"
    hints = (
        "Forward: receive from rank-1, compute, send to rank+1, but for both ends; keep the input and the output.",
        "A received input needs requires_grad_(), for its gradient is what the rank before waits for.",
        "Backward: y.backward(gradient) with what comes from rank+1; then send x.grad to rank-1.",
    )
    solution = _SOLUTION


class OneForwardOneBackward(_Pipeline):
    """Train one step as gpipe does, but let rank r of p have no more than p - r micro-batches under way at once.

    The arguments are those of gpipe. After some forwards, each rank alternates: one forward, one backward.
    """

    asks = "one_forward_one_backward(stage, inputs, loss)"
    hints = (
        "Rank r begins with p - r - 1 forwards. Then one forward and one backward, until the inputs are used up.",
        "What is left at the end is p - r - 1 backwards.",
        "Neighbours send to each other at once: with isend nobody waits. Wait for the handles at the end.",
    )
    solution = _SOLUTION

    def complaint(self, trial: Trial) -> str:
        """Compare how many were under way."""
        for rank, result in enumerate(trial.results):
            most = result["most"]
            if most > trial.size - rank:
                return f"rank {rank} had {most} micro-batches under way, where {trial.size - rank} are enough"
        return super().complaint(trial)
