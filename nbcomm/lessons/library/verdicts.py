"""Lesson 3: deadlocks, and how to read a verdict."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...protocol import rank_lists
from .. import solutions
from ..draw import Draw
from ..puzzle import Cell, CellPuzzle, FunctionPuzzle, Prediction, Trial


class WaitingRanks(Prediction):
    """Ranks 0 and 1 call a barrier, rank 2 raises an error, and rank 3 receives from rank 0. How many ranks wait?"""

    name = "waiting_ranks"
    number = True
    because = "A rank waits until the verdict, whatever for; one that has raised an error waits for nobody."

    def shown(self, variables: Mapping[str, Any], cell: Cell) -> Any:
        """Count those of whom the verdict says so."""
        if "had enough" not in cell.code or not cell.said:
            raise KeyError("the verdict of that cell")
        waiting = re.findall(r"^ +ranks? ([\d,-]+) waits?\b", cell.said, re.MULTILINE)
        return len({rank for ranks in waiting for rank in rank_lists.read(ranks)})


class BlameRank2(CellPuzzle):
    """Write the shortest cell whose verdict says that rank 2, and no other, has finished the cell."""

    name = "blame_rank_2"
    hints = (
        "A verdict names who waits, and for whom. Rank 2 must not arrive where the others wait.",
        "Which call waits for all ranks of the world? Let all ranks but one call it.",
    )

    def complaint(self, cell: Cell) -> str:
        """Read the verdict."""
        if not cell.said:
            return "the last cell ended well, without a verdict"
        if "can never complete" not in cell.said:
            return "the last cell ended with an error, and not with a verdict"
        if "rank 2 has finished the cell" not in cell.said:
            return "the verdict of the last cell does not say that rank 2 has finished it"
        return ""

    def praise(self, cell: Cell) -> str:
        """Count the lines."""
        return f"Your cell has {cell.lines} line{'s' * (cell.lines != 1)}; the shortest has 1."


class FromTheLeft(FunctionPuzzle):
    """Return the value of the rank on the left (rank 0 has the last one on its left), without a barrier.

    Each rank sends one message. If all ranks receive before they send, all wait for ever.
    """

    asks = "from_the_left(value)"
    hints = (
        "Read the verdict: who waits for whom? Which rank could begin?",
        "A rank that sends with isend does not wait for its receiver. When must it wait for the handle?",
    )
    solution = solutions.text("verdicts")

    def given(self, draw: Draw, shared: Draw, rank: int, size: int) -> tuple[Any, ...]:
        """Return one value."""
        return (draw.value(),)

    def right(self, given: Sequence[tuple[Any, ...]], rank: int) -> Any:
        """Return the left neighbour's."""
        return given[rank - 1][0]

    def complaint(self, trial: Trial) -> str:
        """Ask for one message, and nothing else."""
        if found := trial.only_messages("one message is enough"):
            return found
        for rank, calls in enumerate(trial.calls):
            sent = sum(call.sends for call in calls)
            if sent != 1:
                return f"rank {rank} sent {sent} messages, where one is enough"
        return ""
