"""Lesson 5: data parallelism from scratch. Gradients are averaged: at the end, in one piece, or while they come."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .. import solutions
from ..compare import ANYTHING, Parts
from ..puzzle import Cell, Prediction, Trial, usable_function
from ..tiny import sums
from ..training import TrainingPuzzle, gradients_of, small_model, weights_of

_SOLUTION = solutions.text("ddp")

_STEPS, _RATE, _MICRO = 5, 0.1, 4

_SLOW_STEPS, _LATE, _PAUSE = (1, 2), 0.2, 0.1
"""In these steps, the last rank begins its backward so many seconds late: who waits in backward waits for it. And all
pause after backward, so that what was begun there has its turn, however busy the machine is."""


class DdpCalls(Prediction):
    """A model has 28 parameters. How many all_reduce does DDP call in one backward?"""

    name = "ddp_calls"
    number = True
    because = "DDP puts gradients together in buckets of up to 25 MB, and calls one all_reduce for each bucket."

    def shown(self, variables: Mapping[str, Any], cell: Cell) -> Any:
        """Return how many buckets were counted."""
        return variables["buckets"]


def _descend(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.sub_(_RATE * parameter.grad)
                parameter.grad = None


class AverageWhileBackward(TrainingPuzzle):
    """Average each gradient over all ranks; begin while backward still computes others, and let it go on meanwhile.

    The function gets a model, before its first backward, and returns another function, which is called after each
    backward: when it returns, all gradients are averages.
    """

    asks = "average_while_backward(model)"
    trials = 5
    collects = True
    hints = (
        "parameter.register_post_accumulate_grad_hook(hook) calls hook(parameter) as soon as its gradient is there.",
        "all_reduce(…, 'mean', async_op=True) returns a handle at once; handle.wait() returns the average.",
        "Keep each parameter with its handle; the function that you return waits for all, and empties the list.",
    )
    solution = _SOLUTION

    def call(self, function: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        """Train some steps; return the weights, and when each backward began and ended, and when it was finished."""
        seed, own = given
        model = small_model(seed)
        finish = usable_function(function(model))
        backwards = []
        for step in range(_STEPS):
            loss = model(sums(2, own + step))
            if step in _SLOW_STEPS and torch.distributed.get_rank() == torch.distributed.get_world_size() - 1:
                time.sleep(_LATE)
            began = time.time()
            loss.backward()
            ended = time.time()
            if step in _SLOW_STEPS:
                time.sleep(_PAUSE)
            backwards.append((began, ended, time.time()))
            finish()
            _descend(model)
        return Parts(**weights_of(model), backwards=backwards)

    def right(self, given: Sequence[tuple[Any, ...]], rank: int) -> Any:
        """Train one model on all ranks' sums."""
        model = small_model(given[0][0])
        for step in range(_STEPS):
            model(torch.cat([sums(2, own + step) for _, own in given])).backward()
            _descend(model)
        return Parts(**weights_of(model), backwards=ANYTHING)

    def complaint(self, trial: Trial) -> str:
        """Look whether a collective began before backward was finished, and whether none waited for a late rank.

        How soon a thread gets its turn is chance, so that only long waits count.
        """
        for rank, (calls, result) in enumerate(zip(trial.calls, trial.results, strict=True)):
            if not any(began <= call.began < finished for call in calls for began, _, finished in result["backwards"]):
                return f"all weights are right, but rank {rank} began no collective before a backward ended"
        for rank, result in enumerate(trial.results[:-1]):
            waited = min(ended - began for began, ended, _ in (result["backwards"][step] for step in _SLOW_STEPS))
            if waited > 0.8 * _LATE:
                return (
                    f"all weights are right, but rank {rank} waits in backward for a rank that is late: begin a call "
                    "there, and wait for it when backward has ended"
                )
        return ""


class Accumulate(TrainingPuzzle):
    """Leave in a model the gradient over all ranks and all micro-batches, with each parameter sent once.

    The function gets a model, which returns the loss of a batch, and a list of batches. The loss is the mean over all
    of them, and over the ranks.
    """

    asks = "accumulate(model, batches)"
    trials = 5
    hints = (
        "Without zero_grad, backward adds to the gradients that are there. By what must each loss be divided?",
        "Average over the ranks once, after the last backward.",
    )
    solution = _SOLUTION

    def call(self, function: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        """Return the gradients that the function leaves."""
        seed, own = given
        model = small_model(seed)
        function(model, [sums(2, own + number) for number in range(_MICRO)])
        return gradients_of(model)

    def right(self, given: Sequence[tuple[Any, ...]], rank: int) -> Any:
        """Return those of one model, of all sums in one batch."""
        model = small_model(given[0][0])
        model(torch.cat([sums(2, own + number) for _, own in given for number in range(_MICRO)])).backward()
        return gradients_of(model)

    def complaint(self, trial: Trial) -> str:
        """Count the calls: no parameter twice."""
        most = len(weights_of(small_model(0)))
        for rank, calls in enumerate(trial.calls):
            if len(calls) > most:
                return f"rank {rank} called {len(calls)} collectives for {most} parameters"
        return ""
