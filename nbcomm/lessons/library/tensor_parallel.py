"""Lesson 7: one layer on several ranks. Column and row parallel, and what DTensor does of it by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

from .. import solutions
from ..compare import Parts
from ..draw import Draw
from ..puzzle import Cell, FunctionPuzzle, Prediction, Trial, UnusableError, told, usable_function, usable_items

_SOLUTION = solutions.text("tensor_parallel")


class CallsOfAnMlp(Prediction):
    """An MLP has its first matrix in columns on four ranks, its second in rows. How many all_reduce has a forward?"""

    name = "calls_of_an_mlp"
    number = True
    because = "The hidden units are independent of each other: only the second product adds up over ranks."

    def shown(self, variables: Mapping[str, Any], cell: Cell) -> Any:
        """Return what CommDebugMode has counted."""
        return variables["calls"]


def _of_an_mlp(y: Any, x: Any, first: Any, second: Any) -> Parts:
    return Parts(
        {"y": y, "the gradient of x": x, "the gradient of the rows": first, "the gradient of the columns": second}
    )


class ParallelMlp(FunctionPuzzle):
    """Build gelu(x @ first.T) @ second.T of which each rank computes some hidden units, with one all_reduce each way.

    The function gets both whole weights, (hidden, inputs) and (outputs, hidden), and returns a function of x and this
    rank's two parts, as parameters: some rows of the first, and the same columns of the second. x is the same on every
    rank, and so must be its gradient; those of the parts are parts of the whole ones.
    """

    asks = "parallel_mlp(first, second)"
    trials = 10
    hints = (
        "x @ my_rows.T are this rank's hidden units; gelu is for each alone; what must be added up, and when?",
        "In backward, the gradients of x from all ranks add up: an autograd.Function that does nothing in forward.",
        "The second one adds up in forward, and passes the gradient on as it is in backward.",
    )
    solution = _SOLUTION

    def given(self, draw: Draw, shared: Draw, rank: int, size: int) -> tuple[Any, ...]:
        """Return both weights, and x: the same on all ranks."""
        inputs, hidden, outputs = shared.number(2, 6), size * shared.number(1, 4), shared.number(2, 6)
        return shared.tensor(hidden, inputs), shared.tensor(outputs, hidden), shared.tensor(3, inputs)

    def arguments(self, given: tuple[Any, ...]) -> str:
        """Return both weights, and not x, which its function gets."""
        return super().arguments(given[:2])

    def call(self, function: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        """Use it forward and backward."""
        first, second, x = given
        x = x.requires_grad_()
        forward, *parts = usable_items(function(first, second), "a function", "a parameter", "another parameter")
        y = usable_function(forward, "the first item")(x)
        if not y.requires_grad:
            raise UnusableError("nothing leads back from y to x: a collective's result is outside of autograd's graph")
        y.square().sum().backward()
        return _of_an_mlp(y.detach(), x.grad, *(part.grad for part in parts))

    def right(self, given: Sequence[tuple[Any, ...]], rank: int) -> Any:
        """Compute it whole, and cut the gradients."""
        first, second, x = (each.clone().requires_grad_() for each in given[0])
        y = functional.gelu(x @ first.T) @ second.T
        y.square().sum().backward()
        gradients = first.grad, second.grad
        assert gradients[0] is not None  # noqa: S101 - for mypy
        assert gradients[1] is not None  # noqa: S101
        size = len(given)
        return _of_an_mlp(y.detach(), x.grad, gradients[0].chunk(size)[rank], gradients[1].chunk(size, dim=1)[rank])

    def complaint(self, trial: Trial) -> str:
        """Ask for one all_reduce each way."""
        return trial.only(all_reduce=2)


class MendedProduct(FunctionPuzzle):
    """Return a @ b on every rank, whole, where each rank has some columns of a and the same rows of b; one all_reduce.

    The function gets this rank's columns, and its rows.
    """

    asks = "mended_product(columns, rows)"
    hints = (
        "columns @ rows has the shape of the whole product already. What is it a part of?",
        "DTensor calls a tensor of which the sum over the ranks is meant Partial(), and sums it when it is made whole.",
    )
    solution = _SOLUTION

    def given(self, draw: Draw, shared: Draw, rank: int, size: int) -> tuple[Any, ...]:
        """Return this rank's columns and rows."""
        height, depth, width = shared.number(1, 5), shared.number(1, 4), shared.number(1, 5)
        return draw.tensor(height, depth), draw.tensor(depth, width)

    def right(self, given: Sequence[tuple[Any, ...]], rank: int) -> Any:
        """Multiply the whole matrices."""
        return torch.cat([columns for columns, _ in given], 1) @ torch.cat([rows for _, rows in given])

    def complaint(self, trial: Trial) -> str:
        """Ask for one collective that adds up."""
        for rank in range(trial.size):
            found = trial.counts(rank)
            if found != {"all_reduce": 1}:
                return f"rank {rank} called {told(found)}, where 1 all_reduce is enough"
        return ""
