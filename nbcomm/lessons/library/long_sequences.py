"""Lesson 9: long sequences, many experts. Attention in a ring, and tokens that go to the rank of their expert."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

from .. import solutions
from ..draw import Draw
from ..puzzle import Cell, FunctionPuzzle, Prediction, Trial, told

_SOLUTION = solutions.text("long_sequences")


class TimesSmaller(Prediction):
    """Attention has a score for each pair of tokens. In a ring of 4 ranks, how many times fewer has a rank at once?"""

    name = "times_smaller"
    number = True
    because = "A rank has a quarter of the queries, and at each step a quarter of the keys: a sixteenth of the pairs."

    def shown(self, variables: Mapping[str, Any], cell: Cell) -> Any:
        """Divide what the experiment has measured."""
        return variables["all_at_once"] / variables["in_a_ring"]


class RingAttention(FunctionPuzzle):
    """Return causal attention for this rank's queries, where each rank has one block of the sequence, in rank order.

    The function gets the block's queries, keys and values, of shape (tokens, width), as many on each rank. A token sees
    itself and all before it, on whatever rank. Keys and values travel to the right, one block at a time: N-1 sendrecv.
    """

    asks = "ring_attention(query, key, value)"
    trials = 10
    hints = (
        "At each step there is one block of keys and values. From which rank does it come after s steps?",
        "softmax over all blocks: keep the largest score so far, the sum of exp(score - largest), and weighted values.",
        "When the largest score grows, multiply what was summed so far by exp(old - new). Begin with your own block.",
    )
    solution = _SOLUTION

    def given(self, draw: Draw, shared: Draw, rank: int, size: int) -> tuple[Any, ...]:
        """Return this rank's block."""
        tokens, width = shared.number(1, 5), shared.number(2, 6)
        return draw.tensor(tokens, width), draw.tensor(tokens, width), draw.tensor(tokens, width)

    def right(self, given: Sequence[tuple[Any, ...]], rank: int) -> Any:
        """Compute it in one piece."""
        query, key, value = (torch.cat([block[place] for block in given])[None] for place in range(3))
        whole = functional.scaled_dot_product_attention(query, key, value, is_causal=True)[0]
        return whole.chunk(len(given))[rank]

    def complaint(self, trial: Trial) -> str:
        """Count the messages, and their bytes."""
        if found := trial.only_messages():
            return found
        for rank, calls in enumerate(trial.calls):
            sent, steps = sum(call.sends for call in calls), trial.size - 1
            if sent != steps:
                return f"rank {rank} sent {sent} messages, where {steps} are enough"
            nbytes, block = trial.brought(rank), 2 * trial.given[rank][1].nbytes
            if nbytes > steps * block:
                return f"rank {rank} sent {nbytes} bytes, where {steps * block} are enough: keys and values, no more"
        return ""


class Dispatch(FunctionPuzzle):
    """Return each token as its expert changes it, in the order in which the tokens came; each rank has one expert.

    The function gets this rank's tokens, of shape (tokens, width), the number of each one's expert, which is a rank,
    and this rank's expert, a function of tokens. Tokens go to their experts and come back: two or three all_to_all.
    """

    asks = "dispatch(tokens, expert_of, expert)"
    hints = (
        "Sort the tokens by their expert, and split them: all_to_all takes a list with one tensor for each rank.",
        "What arrives is a list, one tensor from each rank, of any length. What goes back is such a list, too.",
        "order = torch.argsort(expert_of): result[order] = … puts the tokens back into their places.",
    )
    solution = _SOLUTION

    def given(self, draw: Draw, shared: Draw, rank: int, size: int) -> tuple[Any, ...]:
        """Return some tokens, or none, and an expert that no other rank has."""
        count, width = draw.number(0, 7), shared.number(1, 4)
        expert_of = torch.tensor([draw.number(0, size - 1) for _ in range(count)], dtype=torch.int64)
        return draw.tensor(count, width), expert_of, _Expert(shared.number(1, 9) + rank)

    def right(self, given: Sequence[tuple[Any, ...]], rank: int) -> Any:
        """Let each expert change its tokens."""
        tokens, expert_of, _ = given[rank]
        changed = [given[int(number)][2](token[None])[0] for token, number in zip(tokens, expert_of, strict=True)]
        return torch.stack(changed) if changed else tokens

    def complaint(self, trial: Trial) -> str:
        """Count the calls."""
        for rank in range(trial.size):
            found = trial.counts(rank)
            if set(found) - {"all_to_all"} or found["all_to_all"] > 3:
                return f"rank {rank} called {told(found)}, where 2 all_to_all are enough"
        return ""


class _Expert:
    """Changes tokens in a way of its own."""

    def __init__(self, factor: int) -> None:
        self._factor = factor

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        return torch.tanh(tokens * self._factor) + self._factor

    def __repr__(self) -> str:
        return "expert"
