"""Puzzles that check themselves on real ranks: what a teacher writes, and what the ranks do for a check.

Nothing of it runs in the notebook's process, which never imports torch.
"""

from __future__ import annotations

from .compare import ANYTHING
from .draw import Draw
from .memory import held_bytes
from .puzzle import Cell, CellPuzzle, Collective, FunctionPuzzle, Prediction, Puzzle, Trial

__all__ = [
    "ANYTHING",
    "Cell",
    "CellPuzzle",
    "Collective",
    "Draw",
    "FunctionPuzzle",
    "Prediction",
    "Puzzle",
    "Trial",
    "held_bytes",
]
