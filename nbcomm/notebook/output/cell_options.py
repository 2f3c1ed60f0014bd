"""How a cell runs and is shown, as its user asks for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CellOptions:
    """The options of ``%%distributed``, and of `Session.run`.

    Attributes:
        fold: show lines on which ranks agree once.
        by_rank: show all of the lowest rank's output, then the next one's, and so on.
        quiet: show nothing; failures are raised all the same.
        draw: show a picture of each collective that the cell made, with the ranks' values before and after.
        trace: write a trace to this file, for https://ui.perfetto.dev: when each rank did what.
    """

    fold: bool = True
    by_rank: bool = False
    quiet: bool = False
    draw: bool = False
    trace: str | None = None
