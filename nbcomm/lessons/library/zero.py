"""Lesson 6: who keeps what. Optimizer state, gradients and weights in shards: ZeRO 1, 2, 3 and FSDP."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .. import solutions
from ..compare import ANYTHING, Parts
from ..draw import Draw
from ..memory import held_bytes
from ..puzzle import Cell, FunctionPuzzle, Prediction, Trial, told, usable_function, usable_items
from ..tiny import sums
from ..training import TrainingPuzzle, small_model, weights_of

_SOLUTION = solutions.text("zero")

_STEPS, _RATE, _EPS = 10, 0.01, 0.001


class AdamTimesWeights(Prediction):
    """After a step of Adam: how many times as many bytes as the weights does its state have?"""

    name = "adam_times_weights"
    number = True
    because = "Adam keeps two numbers for each weight, of the weight's own size: a mean of gradients, and of squares."

    def shown(self, variables: Mapping[str, Any], cell: Cell) -> Any:
        """Return what the ledger says, without the counters of steps."""
        return round(variables["ledger"]["Adam"] / variables["ledger"]["weights"], 1)


class ShardedAdam(TrainingPuzzle):
    """Train as with one Adam over the averaged gradients of all ranks, but let each rank keep a part of Adam's state.

    The function gets a model, and returns another function, which is called after each backward instead of an
    optimizer's step. With N ranks, each may keep an N-th of the state, and that of one parameter more.
    The learning rate is 0.01, eps is 0.001: gradients that are nothing but rounding shall move nothing.
    """

    asks = "sharded_adam(model)"
    trials = 2
    collects = True
    hints = (
        "Deal the parameters out: each has one rank that owns it, has an Adam for it, and takes its steps.",
        "After the step, everybody needs the new weights: the owner can broadcast them.",
        "Deal them out by size, the largest first, each to the rank that has least: else one rank has most of it.",
    )
    solution = _SOLUTION

    def call(self, function: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        """Train; return the weights, and the bytes that were kept beside the model."""
        seed, own = given
        model = small_model(seed)
        before = held_bytes()
        step = usable_function(function(model))
        for number in range(_STEPS):
            model(sums(2, own + number)).backward()
            step()
            model.zero_grad()
        kept = held_bytes(but=model.parameters()) - (before - _bytes(model))
        return Parts(**weights_of(model), kept=kept)

    def right(self, given: Sequence[tuple[Any, ...]], rank: int) -> Any:
        """Train one model with one Adam."""
        model = small_model(given[0][0])
        optimizer = torch.optim.Adam(model.parameters(), _RATE, eps=_EPS)
        for number in range(_STEPS):
            model(torch.cat([sums(2, own + number) for _, own in given])).backward()
            optimizer.step()
            optimizer.zero_grad()
        return Parts(**weights_of(model), kept=ANYTHING)

    def complaint(self, trial: Trial) -> str:
        """Weigh the state."""
        sizes = [parameter.nbytes for parameter in small_model(0).parameters()]
        most = 2 * (sum(sizes) // trial.size + max(sizes)) + 8 * len(sizes)  # and a counter for each parameter
        for rank, result in enumerate(trial.results):
            kept = result["kept"]
            if kept > most:
                return f"all weights are right, but rank {rank} keeps {kept} bytes beside the model; {most} are enough"
        return ""


def _bytes(model: torch.nn.Module) -> int:
    return sum(parameter.nbytes for parameter in model.parameters())


def _of_a_layer(y: Any, x: Any, shard: Any, kept: Any) -> Parts:
    return Parts({"y": y, "the gradient of x": x, "the gradient of the parameter": shard, "what it keeps": kept})


class ShardedLinear(FunctionPuzzle):
    """Build a linear layer of which each rank keeps some rows: gather the weight to use it, and let it go again.

    The function gets the whole weight, of shape (outputs, inputs), and returns a function and a parameter: this rank's
    rows, as many on each rank. The function takes x, and returns x @ weight.T; after backward, the parameter's gradient
    is the mean over the ranks. Gather once in forward, once in backward, and reduce_scatter once.
    """

    asks = "sharded_linear(weight)"
    collects = True
    trials = 10
    hints = (
        "A torch.autograd.Function has its own forward and backward; what it saves for backward stays in memory.",
        "In forward: all_gather(shard, mode='cat'), then x @ weight.T. Save x and the shard, not the weight.",
        "In backward: gather again for the gradient of x; the gradient of the weight is grad.T @ x: reduce_scatter it.",
    )
    solution = _SOLUTION

    def given(self, draw: Draw, shared: Draw, rank: int, size: int) -> tuple[Any, ...]:
        """Return the whole weight, and this rank's x."""
        outputs, inputs = size * shared.number(4, 8), shared.number(8, 16)
        return shared.tensor(outputs, inputs), draw.tensor(3, inputs)

    def arguments(self, given: tuple[Any, ...]) -> str:
        """Return the weight, and not x, which its function gets."""
        return super().arguments(given[:1])

    def call(self, function: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        """Use it forward and backward; return the results, and the bytes that it keeps at rest."""
        weight, x = given
        x = x.requires_grad_()
        before = held_bytes(but=[weight])
        forward, shard = usable_items(function(weight.clone()), "a function", "a parameter")
        forward = usable_function(forward, "the first item")
        rest = held_bytes(but=[weight]) - before
        y = forward(x)
        y.square().sum().backward()
        return _of_a_layer(y.detach(), x.grad, None if shard.grad is None else shard.grad.clone(), rest)

    def right(self, given: Sequence[tuple[Any, ...]], rank: int) -> Any:
        """Compute it with the whole weight, for each rank's x."""
        gradients = []
        for weight, x in given:
            whole, own = weight.clone().requires_grad_(), x.clone().requires_grad_()
            y = own @ whole.T
            y.square().sum().backward()
            gradients.append((y.detach(), own.grad, whole.grad))
        y, own, _ = gradients[rank]
        mean = torch.stack([gradient[2] for gradient in gradients]).mean(0)
        return _of_a_layer(y, own, mean.chunk(len(given))[rank], ANYTHING)

    def complaint(self, trial: Trial) -> str:
        """Count the calls, and weigh what stays."""
        for rank in range(trial.size):
            found, (weight, _), rest = trial.counts(rank), trial.given[rank], trial.results[rank]["what it keeps"]
            if found != {"all_gather": 2, "reduce_scatter": 1}:
                return f"rank {rank} called {told(found)}, where 2 all_gather and 1 reduce_scatter are enough"
            if rest > weight.nbytes // trial.size:
                return f"rank {rank} keeps {rest} bytes, where {weight.nbytes // trial.size} are enough"
        return ""
