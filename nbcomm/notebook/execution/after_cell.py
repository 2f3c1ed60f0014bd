"""What a cell was asked to produce at its end: pictures of its collectives, a chart of its record, a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ...protocol import Done, RankPlacement, Run
from ...rank_spec import named
from ..output.cell_output import CellOutput


class Aftermath:
    """The pictures and the trace of a cell that has ended, well or not.

    Args:
        order: the cell.
        output: where it is shown.
        file: the trace's, or None.
        places: of all ranks.
        chart: what is drawn of its record, or None.
    """

    def __init__(
        self,
        order: Run,
        output: CellOutput,
        file: Path | None,
        places: Sequence[RankPlacement],
        chart: str | None = None,
    ) -> None:
        self._order = order
        self._output = output
        self._file = file
        self._places = list(places)
        self._chart = chart

    def __call__(self, answers: Mapping[int, Done]) -> None:
        """Use what the ranks reported at their end."""
        if self._order.draw:
            self._show(answers)
        if self._chart is not None:
            self._show_chart(self._chart, answers)
        if self._file is not None:
            self._save(self._file, answers)

    def _show(self, answers: Mapping[int, Done]) -> None:
        from ...explorer.explorer import remember
        from ...pictures import from_cell
        from ...pictures.picture import Picture

        plans, rest = from_cell.plans(
            {rank: done.steps for rank, done in answers.items()},
            {rank: done.dropped for rank, done in answers.items()},
        )
        if plans:
            remember(plans)
        for plan in plans:
            self._output.append(Picture(plan).bundle)
        if rest:
            self._output.say(rest + "\n")

    def _show_chart(self, kind: str, answers: Mapping[int, Done]) -> None:
        from ...charts import from_record

        made = from_record.chart(kind, answers)
        if isinstance(made, str):
            self._output.say(made + "\n")
        else:
            self._output.append(made.bundle)

    def _save(self, file: Path, answers: Mapping[int, Done]) -> None:
        from ...analysis import perfetto

        try:
            count = perfetto.write(file, self._places, self._order.number, self._order.code, answers)
        except OSError as error:
            self._output.say(f"The trace could not be written: {error}.\n", "stderr")
            return
        dead = sorted(rank for rank, done in answers.items() if not done.began)
        without = f", without {named(dead)}" if dead else ""
        self._output.say(
            f"Trace of {count} collective{'' if count == 1 else 's'} and messages written to {file}{without}: "
            "open it in https://ui.perfetto.dev or chrome://tracing.\n"
        )
