"""How a cell runs and is shown, as its user asks for it."""

from __future__ import annotations

from dataclasses import dataclass

CHARTS = ("step", "pipeline", "bytes")
"""What can be drawn of a cell's record, beside its collectives."""


@dataclass(frozen=True)
class CellOptions:
    """The options of ``%%distributed``, and of `Session.run`.

    Attributes:
        fold: show lines on which ranks agree once.
        by_rank: show all of the lowest rank's output, then the next one's, and so on.
        quiet: show nothing; failures are raised all the same.
        draw: show a picture of each collective that the cell made, with the ranks' values before and after.
        chart: show a chart of the cell's record: "step", "pipeline" or "bytes".
        trace: write a trace to this file, for https://ui.perfetto.dev: when each rank did what.
    """

    fold: bool = True
    by_rank: bool = False
    quiet: bool = False
    draw: bool = False
    chart: str | None = None
    trace: str | None = None
