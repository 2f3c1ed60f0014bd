"""The commands to the ranks of a world: run cells and scripts, transfer values, describe variables.

`Session` consists of this, and of the life of its world.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
from typing import TYPE_CHECKING, Any

from ... import rank_spec as rank_specs
from ...errors import RankDiedError, SpecError, StateError
from ...panel.words import took
from ...protocol import CallRecord, Run, rank_lists
from ..cluster.pending import UNSENT
from ..display.area import current_area
from ..execution.after_cell import Aftermath
from ..execution.introspection import PATIENCE, Answer, Introspections
from ..execution.transfers import Transfers
from ..output.cell_options import CHARTS, CellOptions
from ..output.cell_output import CellOutput
from ..output.failures import healing
from ..variables.queries import VariableQueries
from . import script_cells
from .cell_log import CellLog

if TYPE_CHECKING:
    from pathlib import Path

    from ...charts.chart import Chart
    from ...charts.grid import Grid
    from ...launch.link import Link
    from ...world_dir import WorldDir
    from ..cluster.rank_table import RankTable
    from ..execution.cell_run import CellExecutor
    from ..execution.dispatcher import Dispatcher
    from ..lessons.checking import Outcome
    from ..lessons.lessons import Lessons
    from ..measures.bench import Bench
    from ..variables.comparison import Comparison
    from ..variables.table import Variable


class Commands:
    """The commands of one world.

    Args:
        bulk: returns where large values are passed to the ranks and back; None if some are on another machine.
        link: to the ranks.
        rank_table: the ranks, and which of them are dead.
        dispatcher: sends requests, and waits for answers.
        executor: one cell at a time.
        attached: another notebook has started the world, and may have run cells that are unknown here.
    """

    _stopped: bool
    home: WorldDir

    def __init__(  # noqa: PLR0913 - one of them by keyword
        self,
        bulk: Callable[[], Path | None],
        link: Link,
        rank_table: RankTable,
        dispatcher: Dispatcher,
        executor: CellExecutor,
        *,
        attached: bool,
    ) -> None:
        self._rank_table = rank_table
        self._dispatcher = dispatcher
        self._executor = executor
        self._numbers = itertools.count(1)
        self._transfers = Transfers(dispatcher, executor, bulk)
        self._queries = VariableQueries(dispatcher, executor)
        self._inquiries = Introspections(link)
        self._cell_log = CellLog(attached=attached)

    @property
    def ranks(self) -> list[int]:
        """All ranks, ascending."""
        return self._rank_table.ranks

    def run(
        self,
        code: str,
        ranks: str | Iterable[int] | None = None,
        *,
        number: int | None = None,
        above: int = 0,
        **options: Any,
    ) -> None:
        """Run a cell and show its output; return when it has ended on every rank.

        Args:
            code: the cell, as in a notebook: magics, ``!cmd`` and top-level ``await`` included.
            ranks: a SPEC such as ``"0-2"``, or ranks; all by default.
            number: the cell's number on the ranks, in tracebacks and history; counted by default.
            above: how many lines stand above the code where a reader sees it: lines of it are counted from there.
            **options: ``fold``, ``by_rank``, ``quiet``, ``draw``, ``chart`` and ``trace``: see `CellOptions`.

        Raises:
            CellError: it failed on some rank.
            SpecError: there are no such ranks, or the trace's file cannot be written. Nothing was run.
            StateError: the world is stopped, or still busy. Nothing was run.
            KeyboardInterrupt: it was interrupted.
        """
        self._run(code, None, ranks, number, CellOptions(**options), above=above)

    def run_file(
        self,
        path: str,
        args: Iterable[object] = (),
        ranks: str | Iterable[int] | None = None,
        *,
        number: int | None = None,
        fresh: bool = False,
        **options: Any,
    ) -> None:
        """Run a script on ranks as ``torchrun path args`` would; its variables are the cells' own afterwards.

        Args:
            path: the script.
            args: its arguments.
            ranks: which ranks run it; all by default.
            number: as in `run`.
            fresh: replace the processes of these ranks before: their variables are lost, and so is what libraries keep
                in a process.
            **options: as in `run`.

        Raises:
            ScriptError: there is no such script. Nothing was run, and no process was replaced.
            StartError: a new process did not start; the ranks are dead.
            CellError: it failed on some rank, or ended with an exit status other than 0.
        """
        words = [str(arg) for arg in args]
        script = " ".join([path, *words])
        code, content = script_cells.order(path, words)
        self._run(code, script, ranks, number, CellOptions(**options), content=content, fresh=fresh)

    def _run(  # noqa: PLR0913 - what `run` and `run_file` have
        self,
        code: str,
        script: str | None,
        ranks: str | Iterable[int] | None,
        number: int | None,
        options: CellOptions,
        *,
        content: bytes | None = None,
        fresh: bool = False,
        above: int = 0,
    ) -> None:
        chosen = self._choose(ranks, replacing=fresh)
        file = None if options.trace is None else _checked(options.trace)
        _check_chart(options.chart)
        if fresh:  # after everything that can be refused
            self.heal(chosen)
            self._cell_log.replaced(chosen, len(self.ranks))
            if not options.quiet:
                sys.stdout.write(f"{_fresh(chosen, len(self.ranks))}\n")
        number = next(self._numbers) if number is None else number
        output = CellOutput(chosen, options, folder=self.home.path)
        with self._executor.alone(), self._cell_log.cell(number, code, chosen, len(self.ranks), script):
            order = Run(
                UNSENT,
                code,
                rank_lists.written(chosen),
                number,
                options.draw,
                file is not None or options.chart is not None,
                content,
                above,
            )
            self._executor.perform(
                order, output, Aftermath(order, output, file, self._rank_table.places, options.chart)
            )

    def replay(self) -> None:
        """Show again what the last cell has shown, with the errors that ended it; before it, what a page has missed.

        For a page that was loaded again in mid-cell. Displays are as they are now, and no
        longer change. If a cell has shown more than four million characters, the beginning is left out.

        Raises:
            StateError: no cell has run yet.
        """
        ran = [*self._executor.ran]
        if not ran:
            raise StateError("No cell of this notebook has run on this world's ranks yet: there is nothing to show.")
        area = current_area()
        for run in [*(run for run in ran[:-1] if run.missed), ran[-1]]:
            run.show_again(area)

    def took(self, number: int) -> str:
        """Describe how long the cell of this number took, and for what; empty if it was not the last to run."""
        _, line = self._executor.collective_log.story(len(self.ranks), self._rank_table.nodes)
        return took(line) if line.cell == number and line.spans and not line.running else ""

    def call(
        self, function: Callable[..., Any], *args: Any, ranks: str | Iterable[int] | None = None, **kwargs: Any
    ) -> list[Any]:
        """Call a function on ranks, with the same arguments on each.

        A function typed in the notebook brings the globals that it uses; other names it finds on the rank.

        Returns:
            What it returned on each chosen rank, in rank order.

        Raises:
            CellError: it raised on some rank.
            TransferError: the function, an argument or a result cannot be pickled.
        """
        chosen = self._choose(ranks)
        self._cell_log.called(getattr(function, "__name__", "call"), chosen, len(self.ranks))
        return self._transfers.call(function, args, kwargs, chosen)

    def trial(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        ranks: Iterable[int] | None = None,
        limit: float = 60.0,
        *,
        quiet: bool,
    ) -> tuple[list[Any], list[list[CallRecord]]]:
        """Call a function as `call` does; return also which collectives each rank has called, with their bytes.

        It is no part of what `save` writes.

        Args:
            function: the function.
            args: its arguments.
            ranks: who calls it; by default all.
            limit: seconds that it may take.
            quiet: show nothing of what it prints.

        Raises:
            TimeoutError: it took longer, and was interrupted.
        """
        return self._transfers.trial(function, tuple(args), self._choose(ranks), limit, quiet=quiet)

    def check(self, puzzle: str, course: str = "") -> Outcome:
        """Check what a learner has written for a puzzle: a function is tried on fresh inputs on every rank.

        It ends: a function that waits for ever, or takes more than 20 seconds, is told as a mistake.

        Args:
            puzzle: its name, which is the function's.
            course: the file with a teacher's own puzzles; by default those of nbcomm's lessons. See docs/lessons.md.

        Returns:
            What was found: true if all is right; as text, what a learner reads.

        Raises:
            LessonError: there is no such puzzle, or it is broken itself.
        """
        return self.lessons(course).check(puzzle)

    def lessons(self, course: str = "") -> Lessons:
        """Return the puzzles of a course: to check, to predict, for hints, and how far this learner is.

        Args:
            course: as for `check`.

        Raises:
            LessonError: the file cannot be read.
        """
        from ..lessons.lessons import Lessons

        return Lessons(self, course)

    def last_cell(self) -> tuple[str, str]:
        """Return the text of the last cell that ran on ranks, and the error that ended it; "" if there is none."""
        ran = self._executor.ran
        return self._cell_log.last, ran[-1].said if ran else ""

    def spawn(
        self, function: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Call ``function(local_rank, *args, **kwargs)`` on every rank; see `nbcomm.spawn`."""
        chosen = self._choose(None)
        self._cell_log.called(getattr(function, "__name__", "spawn"), chosen, len(self.ranks))
        return self._transfers.call(function, tuple(args), dict(kwargs or {}), chosen, local_rank=True)

    def push(self, /, ranks: str | Iterable[int] | None = None, **variables: Any) -> None:
        """Bind variables on ranks; each rank gets a copy of its own.

        Raises:
            TransferError: a value cannot be pickled (nothing was sent then), or cannot be rebuilt there.
        """
        self.push_many(variables, ranks)

    def push_many(self, variables: Mapping[str, Any], ranks: str | Iterable[int] | None = None) -> None:
        """Bind variables by their names, as `push` does; one may be called ``ranks``, too."""
        variables, chosen = dict(variables), self._choose(ranks)
        self._transfers.push(variables, chosen)
        self._cell_log.pushed(variables, chosen, len(self.ranks))

    def pull(self, name: str, ranks: str | Iterable[int] | None = None) -> list[Any]:
        """Fetch a variable from ranks.

        Returns:
            Its value on each chosen rank, in rank order; tensors arrive on the CPU.

        Raises:
            TransferError: it is not defined on some rank, or cannot be pickled there.
        """
        return self.pull_many([name], ranks)[name]

    def pull_many(self, names: Sequence[str], ranks: str | Iterable[int] | None = None) -> dict[str, list[Any]]:
        """Fetch several variables at once, as `pull` does each."""
        return self._transfers.pull(names, self._choose(ranks))

    def inquire(
        self, kind: str, code: str, cursor: int, detail: int = 0, ranks: str | Iterable[int] | None = None
    ) -> list[Answer]:
        """Ask those of some ranks that live for completions or help; return what they will have answered."""
        self._check_running()
        return [self._inquiries.ask(rank, kind, code, cursor, detail) for rank in self._living(ranks)]

    def _living(self, ranks: str | Iterable[int] | None) -> list[int]:
        return [rank for rank in self._resolve(ranks) if rank not in self._rank_table.dead]

    def holders(self, name: str) -> list[int]:
        """Return the ranks that have a variable of this name, and say so within half a second."""
        asked = {rank: self._inquiries.ask(rank, "complete", name, len(name)) for rank in self._living(None)}
        futures.wait(asked.values(), PATIENCE)
        told = {rank: answer.result() for rank, answer in asked.items() if answer.done()}
        return [rank for rank, content in told.items() if content is not None and name in content["matches"]]

    def who(self, names: str | Iterable[str] = (), ranks: str | Iterable[int] | None = None) -> list[Variable]:
        """Describe the ranks' variables, and which are equal on all of them; see `Variable`.

        Args:
            names: names, or expressions such as ``"model.fc.weight"``; by default all that users made, as ``%whos``.
            ranks: a SPEC such as ``"0-2"``, or ranks; all by default.
        """
        return self._queries.who(names, self._choose(ranks))

    def diff(self, name: str, ranks: str | Iterable[int] | None = None, atol: float = 0.0) -> Comparison:
        """Compare a variable between ranks; ``str`` of the result is a text.

        Args:
            name: a name, or an expression such as ``"model.fc.weight"``.
            ranks: a SPEC such as ``"0-2"``, or ranks; all by default. The lowest rank that has it is the reference.
            atol: numbers that are no further apart count as equal; with 0 all bits count.

        Raises:
            TransferError: no rank has it, or it cannot be compared.
        """
        return self._queries.diff(name, self._choose(ranks), atol)

    def bench(self, op: str = "all_reduce", most: int = 16 << 20) -> Bench:
        """Measure how long a collective takes at sizes from 1 KiB to ``most`` bytes, each four times the one before.

        An interrupt ends it, and what was measured is shown.

        Args:
            op: its name: "all_reduce", "broadcast", …
            most: the largest size, in bytes that each rank brings.

        Returns:
            The times, the cost of a call and of a byte that fits them, and the bandwidths by nccl-tests' definitions.

        Raises:
            SpecError: there is no such collective, or the world has one rank. Nothing was run.
        """
        from ..measures import bench

        return bench.bench(self, op, most)

    def bench_pairs(self) -> list[Grid]:
        """Measure messages between each two ranks: the time for 1 KiB, and the speed for 1 MiB.

        Raises:
            SpecError: the world has one rank.
        """
        from ..measures import bench

        return bench.pairs(self)

    def chart(self, what: str, *names: str, epochs: int = 3) -> Chart:
        """Draw values that the ranks hold.

        Args:
            what: "memory": the tensors of modules, optimizers and results, by what they are for; of all variables if
                there are no names. "samples": which rank gets which sample of a sampler or data loader. "shards":
                which rank holds which part of a DTensor, or of a module's parameters.
            *names: variables of the ranks, or expressions such as ``model.fc.weight``.
            epochs: of samples, how many epochs.

        Raises:
            SpecError: there is no such chart, or a name is missing. Nothing was run.
            TransferError: a value is none that has such a chart.
        """
        from ..measures import drawing

        return drawing.draw(self, what, names, epochs)

    def save(self, path: str, *, force: bool = False, everything: bool = False) -> str:
        """Write the cells that this session has run as a script, which gives the same results under torchrun.

        Args:
            path: the file.
            force: overwrite a file that nbcomm has not written, or that was changed since.
            everything: include cells that failed, as comments, and those that only repeat definitions.

        Returns:
            What was written and what was left out, in sentences.

        Raises:
            ScriptError: the file cannot be written, or is not nbcomm's. Nothing was written.
            StateError: no cell has run yet.
        """
        return self._cell_log.save(path, len(self.ranks), force=force, everything=everything)

    def heal(self, ranks: str | Iterable[int] | None = None) -> list[str]:
        """Replace the processes of ranks; see `Session.heal`."""
        raise NotImplementedError

    # ── on which ranks ────────────────────────────────────────────────────────────────────────────────────

    def _hear_ends(self) -> None:
        """Wait until each end of a process that can be seen by now is reported."""

    def _check_running(self) -> None:
        if self._stopped:
            raise StateError("This world is stopped; start one with %distributed start.")

    def _resolve(self, ranks: str | Iterable[int] | None) -> list[int]:
        n = len(self.ranks)
        if ranks is None:
            return self.ranks
        if isinstance(ranks, str):
            return rank_specs.parse(ranks, n)
        return rank_specs.checked(ranks, n)

    def _choose(self, ranks: str | Iterable[int] | None, *, replacing: bool = False) -> list[int]:
        self._check_running()
        chosen = self._resolve(ranks)
        if not replacing and self._rank_table.dead_among(chosen):
            self._hear_ends()  # whom is left to choose, is said of now
            raise RankDiedError(self._died(self._rank_table.dead_among(chosen)))
        # If some are replaced, all ranks re-form their groups.
        busy = sorted(self._dispatcher.busy() & set(self.ranks if replacing else chosen))
        if busy and not self._executor.taken:
            who, one = rank_specs.capital(rank_specs.named(busy)), len(busy) == 1
            raise StateError(
                f"{who} still run{'s' * one} an earlier cell; nothing was run. Wait for it, or type %distributed "
                f"interrupt, or %distributed heal {rank_specs.fold(busy)} to replace {'it' if one else 'them'}."
            )
        return chosen

    def _died(self, gone: Sequence[int]) -> str:
        """Tell which ranks are dead, and what to do."""
        rank_table, others = self._rank_table, bool(self._rank_table.living)
        ends = rank_specs.capital(rank_specs.ends_of(gone, rank_table.dead))
        remedies = list(filter(None, dict.fromkeys(rank_table.without_heal(rank) for rank in gone)))
        if not remedies:
            also = " (the others keep their variables), or choose other ranks with -r" if others else ""
            remedies = [f"{healing(gone)}{also or ', or %distributed restart for a new world'}."]
        elif others:
            remedies.append("The other ranks can be chosen with -r.")
        return f"{ends}; nothing was run. {' '.join(remedies)}"


def _checked(trace: str) -> Path:
    from ...analysis import perfetto

    return perfetto.check(trace)


def _check_chart(chart: str | None) -> None:
    if chart is not None and chart not in CHARTS:
        raise SpecError(f"There is no chart {chart!r} of a cell's record. Choose {', '.join(CHARTS)}.")


def _fresh(chosen: Sequence[int], size: int) -> str:
    others = "" if len(chosen) == size else "; the other ranks keep theirs"
    named, are = rank_specs.named(chosen), "is" if len(chosen) == 1 else "are"
    return f"{rank_specs.capital(named)} {are} new and without variables{others}."
