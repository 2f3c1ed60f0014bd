"""Lesson 10: losing a rank. Checkpoints that resume exactly, and on fewer ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from .. import solutions
from ..compare import ANYTHING
from ..draw import Draw
from ..puzzle import Cell, FunctionPuzzle, Prediction, Trial
from ..tiny import LENGTH, sums
from ..training import TrainingPuzzle, small_model, weights_of

_SOLUTION = solutions.text("checkpoints")

_STEPS = 3
"""Before a save, and after it."""


class StepsLost(Prediction):
    """Every 10 steps a checkpoint is written, the last one after step 20; a rank dies in step 28. How many are lost?"""

    name = "steps_lost"
    number = True
    because = "What came after the last checkpoint is done again; the other ranks' variables are as they were."

    def shown(self, variables: Mapping[str, Any], cell: Cell) -> Any:
        """Return what the experiment has counted."""
        return variables["lost"]


class Training:
    """A training run on one rank: a model, its optimizer, and what it reads next.

    Attributes:
        model: with dropout, so each step draws random numbers.
        optimizer: Adam.
        order: the order of the samples in this epoch.
        position: how many of them were seen.
    """

    def __init__(self, seed: int, own: int) -> None:
        self.model = small_model(seed, blocks=1)
        self.optimizer = torch.optim.Adam(self.model.parameters(), 0.01)
        self._sums = sums(16, own)
        self.order = torch.randperm(16, generator=torch.Generator().manual_seed(own)).tolist()
        self.position = 0

    def step(self) -> Step:
        """Train on the next two samples; return what the step was."""
        before = weights_of(self.model)
        chosen = self.order[self.position : self.position + 2]
        self.position += 2
        tokens = self._sums[chosen]
        keep = functional.dropout(torch.ones(len(chosen), LENGTH - 1), 0.2) > 0
        scores = self.model.logits(tokens[:, :-1])
        losses = functional.cross_entropy(scores.transpose(1, 2), tokens[:, 1:], reduction="none")
        self.optimizer.zero_grad()
        (losses * keep).mean().backward()
        self.optimizer.step()
        return Step(before, chosen, keep, weights_of(self.model))


class Step(NamedTuple):
    """One step of a training run.

    Attributes:
        before: the weights.
        samples: which were read.
        keep: what was drawn.
        after: the weights.
    """

    before: Mapping[str, torch.Tensor]
    samples: list[int]
    keep: torch.Tensor
    after: Mapping[str, torch.Tensor]

    def is_another(self, other: Step) -> str:
        """Return in words where another step differs, "" if it does not."""
        if not _equal(self.before, other.before):
            return "begins with other weights"
        if self.samples != other.samples:
            return "reads other samples"
        if not torch.equal(self.keep, other.keep):
            return "draws other random numbers"
        return "" if _equal(self.after, other.after) else "takes another step: the optimizer has another state"


def _equal(some: Mapping[str, torch.Tensor], others: Mapping[str, torch.Tensor]) -> bool:
    return all(torch.equal(some[name], others[name]) for name in some)


class Checkpoint(TrainingPuzzle):
    """Save a training run so that it goes on exactly as if nothing had happened, to the last bit.

    Neither the run that was saved nor the one that is restarted may differ from one that never was. The function is
    called with a run, and returns what is to be kept. Later it is called with a run that has just begun, and with what
    was kept, and makes the one as the other was. A run has model, optimizer, order and position; its steps draw from
    torch's random numbers.
    """

    asks = "checkpoint(run, kept=None)"
    collects = True
    trials = 5
    hints = (
        "model.state_dict() and optimizer.state_dict() share memory with the run: copy.deepcopy them.",
        "Which sample comes next? order and position say it.",
        "torch.get_rng_state() and torch.set_rng_state(state): else the next dropout is another one.",
    )
    solution = _SOLUTION

    def call(self, function: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        """Go on from one point: without a save, behind one, and behind a restart; return where those two differ."""
        seed, own = given
        with torch.random.fork_rng(devices=[]):
            undisturbed = _steps(_begun(seed, own))
            run = _begun(seed, own)
            kept = function(run)
            behind = _steps(run)
            torch.manual_seed(own + 1)
            again = Training(seed, own + 1)
            again._sums = run._sums  # noqa: SLF001 - the data set is the same, the order is another one
            function(again, kept)
            return [_difference(undisturbed, other) for other in (behind, _steps(again))]

    def right(self, given: Sequence[tuple[Any, ...]], rank: int) -> Any:
        """Return that `complaint` looks at it."""
        return ANYTHING

    def complaint(self, trial: Trial) -> str:
        """Say from where on it is another run."""
        for rank, (behind, again) in enumerate(trial.results):
            if behind:
                return f"on rank {rank}, a save changes the run that goes on: step {behind}"
            if again:
                return f"on rank {rank}, the run is restarted, and step {again}"
        return ""


def _begun(seed: int, own: int) -> Training:
    """Return a run after some steps."""
    torch.manual_seed(own)
    run = Training(seed, own)
    for _ in range(_STEPS):
        run.step()
    return run


def _steps(run: Training) -> list[Step]:
    return [run.step() for _ in range(_STEPS)]


def _difference(steps: Sequence[Step], others: Sequence[Step]) -> str:
    found = ((number, one.is_another(other)) for number, (one, other) in enumerate(zip(steps, others, strict=True), 1))
    return next((f"{number} after it {how}" for number, how in found if how), "")


class Reshard(FunctionPuzzle):
    """Return the rows that this rank has of a tensor when the first `ranks` ranks share it; None on the others.

    The function gets this rank's rows of it, as all ranks share it now, in rank order and as many on each. Nobody may
    get more than the rows that are then its own: send and receive them.
    """

    asks = "reshard(rows, ranks)"
    hints = (
        "Number all rows through: rank r has rows r·n to (r+1)·n now, with n = len(rows). Which will it have?",
        "For each pair of ranks, the rows that one has and the other needs are a range: from max(begins) to min(ends).",
        "isend all, then recv from each rank in turn, and torch.cat. What stays here needs no message.",
    )
    solution = _SOLUTION

    def given(self, draw: Draw, shared: Draw, rank: int, size: int) -> tuple[Any, ...]:
        """Return this rank's rows, and how many ranks there will be."""
        ranks = shared.number(1, size)
        return draw.tensor(ranks * shared.number(1, 3), shared.number(1, 3)), ranks

    def right(self, given: Sequence[tuple[Any, ...]], rank: int) -> Any:
        """Cut the whole tensor."""
        ranks = given[0][1]
        return torch.cat([rows for rows, _ in given]).chunk(ranks)[rank] if rank < ranks else None

    def complaint(self, trial: Trial) -> str:
        """Look who sent what."""
        if found := trial.only_messages():
            return found
        rows, ranks = trial.given[0]
        own = rows.nbytes * trial.size // ranks
        came = dict.fromkeys(range(trial.size), 0)
        for calls in trial.calls:
            for call in calls:
                if call.sends and call.peer is not None:
                    came[call.peer] += call.nbytes
        for rank, nbytes in came.items():
            most = own if rank < ranks else 0
            if nbytes > most:
                return f"rank {rank} got {nbytes} bytes, where it needs no more than {most}"
        return ""
