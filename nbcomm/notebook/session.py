"""The world as the notebook sees it: start it, run cells on it, send values to and fro, stop it.

`Session` is the public Python API; the magics are a thin layer over it.
"""

from __future__ import annotations

import atexit
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import ranks as rank_specs
from ..errors import Interrupted, RankDiedError, SpecError, StateError
from ..home import WorldInfo
from ..messages import Asking, Done, FromRank, Mismatch, Output, Probe, Run, Stop, Told, Withdrawn
from ..panel import Panel, RankView
from . import buttons, programs
from . import trace as tracing
from .aftermath import Aftermath
from .desk import TICK, Desk
from .differences import Comparison
from .generations import Generations
from .headline import headline
from .inquiries import Answer, Inquiries
from .keeping import worlds_are_kept
from .link import Link
from .manuscript import Manuscript
from .mirrors import Mirrors
from .naming import addressed
from .output import CellOutput
from .presses import Presses
from .processes import Processes
from .resumption import Resumption
from .roster import Roster
from .stage import Stage
from .startup import Progress, Startup, Wishes
from .surveys import Surveys
from .transfers import Transfers
from .variables import Variable
from .watch import Watch

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on

    from ..launch.client import ForkServerClient

_STATUS_PATIENCE = 0.5
"""Seconds that a rank has to say what it does."""

_DEATH_PATIENCE = 2.0
"""Seconds that a rank has to say that it lives, before a heal that was asked for believes that it does."""


class Session:
    """N ranks that run cells. Make one with `nbcomm.start`; it is a context manager.

    Args:
        forkserver: starts the processes; it may still be importing torch.
        wishes: how many ranks, on what.
        progress: told how the start comes along.
        existing: what is known of a world that lives already; then nothing is started.

    Attributes:
        name: what the notebook calls this world; empty for the one that it uses where it names none.
        wishes: what another world like this one would have to be.

    Raises:
        StartError: the world did not come up; nothing of it is left.
        StateError: another notebook steers the existing world.
    """

    def __init__(
        self,
        forkserver: ForkServerClient,
        wishes: Wishes | None = None,
        progress: Progress = lambda *_: None,
        existing: WorldInfo | None = None,
    ) -> None:
        wishes = wishes or Wishes()
        self.name = wishes.name or (existing.name if existing is not None else "")
        self.wishes = replace(wishes, name=self.name)
        self.home = forkserver.home
        self.panel: Panel | None = None
        self._roster = Roster(self.home)
        self._numbers = itertools.count(1)
        self._desk = Desk(lambda: self.link, self._roster, self.addressed)
        self._inquiries = Inquiries(lambda: self.link)
        self._stopped = False
        self._watch: Watch | None = None
        self._processes = Processes(forkserver, self._roster, self._process_ended)
        self._startup = Startup(wishes, self._processes, self._roster, progress)
        self._generations = Generations(self.home, self._roster, lambda: self.link, self._desk.expect)
        self._widgets = Mirrors(lambda rank, heard: self.link.send([rank], heard))
        self._stage = Stage(
            self._desk, self._generations, lambda: len(self.ranks), self._widgets, self._settle_panel, self._hurry
        )
        self._transfers = Transfers(self._desk, self._stage, self.home.bulk)
        self._surveys = Surveys(self._desk, self._stage)
        self._manuscript = Manuscript(attached=existing is not None)
        self._resumption = Resumption() if existing is not None else None
        self._grace = wishes.grace if existing is None else existing.grace
        self.link = Link(self.home, self._grace, self._receive)
        atexit.register(self._leave_or_stop)
        try:
            if existing is None:
                self._startup.launch()
                self._startup.await_ranks()
                self._startup.form_group(self._generations)
                self._started = time.time()
                self._leave_word()
            else:
                self._take_up(existing)
        except BaseException:
            if existing is None:
                self.stop()
            else:
                self.release()
            raise
        self.panel = Panel(self.title, self.backend, self.status(), actions=buttons.actions(self))
        self._watch = Watch(
            self.link,
            self._roster,
            self._generations,
            cell=lambda: self._stage.cell,
            tell_panel=self._tell_panel,
            chronicle=self._stage.chronicle,
            seen=lambda: self._desk.seen,
            look=self._processes.look,
            addressed=self.addressed,
        )

    def _take_up(self, info: WorldInfo) -> None:
        """Steer a world that another notebook has started, and left."""
        self._started = info.started
        self._processes.take_up(info)
        first = self._roster.places[0]
        device = first.device.partition(":")[0]
        self.wishes = Wishes(len(info.places), device, first.backend, grace=info.grace, name=self.name)
        self.link.send(self._roster.living, Probe())
        resumption = self._resumption
        assert resumption is not None  # noqa: S101 - for mypy
        self._generations.take_up(resumption.await_ranks(self._roster, self.link), info.port)
        self._desk.take_up(resumption.run)
        if resumption.run:
            resumption.request = self._desk.expect(resumption.ranks, resumption.run)
            resumption.repeat_answers(self._answer)
            for rank in self._roster.dead_among(resumption.ranks):
                self._desk.lose(rank, self._roster.dead[rank])

    def resume(self) -> None:
        """Show what a cell that another notebook has begun shows, from its beginning, and wait for its end.

        Nothing happens if the world was idle; else it raises what the cell raises, as `run` does.
        """
        resumption = self._resumption
        if resumption is None or resumption.request is None:
            self._resumption = None
            return
        with self._stage.alone(), Presses() as presses:
            request = resumption.request
            output = CellOutput(resumption.ranks)
            self._stage.begin(request, output)
            resumption.hand_over(self._receive)
            self._resumption = None
            self._stage.finish(request, output, presses)

    def _leave_word(self) -> None:
        """Write down what another notebook would need to know."""
        hellos = [self._roster.hellos[rank] for rank in self.ranks]
        cwd = str(Path.cwd())
        self.home.write_world(
            WorldInfo(
                self._roster.title,
                self._roster.places,
                hellos,
                self._generations.port,
                self._grace,
                self._started,
                cwd,
                self.name,
            )
        )

    # ── start and stop ──────────────────────────────────────────────────────────────────────────────

    def stop(self) -> None:
        """End the world: its processes, sockets and files. Stopping twice is no error."""
        if self._stopped:
            return
        self._hang_up(Stop())
        self._processes.shutdown()

    def release(self) -> None:
        """Let go of the world without ending it: `nbcomm.attach` takes it up again, until its grace is over."""
        if self._stopped:
            return
        self._hang_up(None)
        self._processes.release()

    def _hang_up(self, last: Stop | None) -> None:
        self._stopped = True
        atexit.unregister(self._leave_or_stop)
        if self._watch is not None:
            self._watch.close()
        self.link.send(self._roster.hellos, last or Probe(self._desk.seen))
        self.link.close()
        self._widgets.close()
        self._desk.close("was stopped" if last is not None else "was left")
        if self.panel is not None:
            self.panel.close()

    def _leave_or_stop(self) -> None:
        """This process ends: a world is kept for the kernel that is about to take its place, and for nobody else."""
        if worlds_are_kept():
            self.release()
        else:
            self.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ── what it is ──────────────────────────────────────────────────────────────────────────────────

    @property
    def running(self) -> bool:
        """Whether the world has been started and not stopped."""
        return not self._stopped

    @property
    def busy(self) -> bool:
        """Whether a request is under way."""
        return bool(self._desk.open())

    @property
    def ranks(self) -> list[int]:
        """All ranks, ascending."""
        return self._roster.ranks

    @property
    def title(self) -> str:
        """How many ranks, on what; its name first, if it has one."""
        return f"{self.name}: {self._roster.title}" if self.name else self._roster.title

    def addressed(self, text: str) -> str:
        """Let the remedies in a text name this world."""
        return addressed(text, self.name)

    @property
    def backend(self) -> str:
        """The backend of the process group."""
        return self._roster.places[0].backend

    @property
    def notice(self) -> str:
        """What the user should know of the devices that were chosen, or of how the ranks were started; often empty."""
        return self._startup.notice

    @property
    def troubles(self) -> list[str]:
        """What has happened to the processes that serve the ranks, in sentences; `heal` mends it."""
        return [self.addressed(trouble) for trouble in self._processes.troubles]

    @property
    def client(self) -> Any:
        """The `Client` of ipyparallel for the same engines; engine id = rank."""
        self._check_running()
        return self._processes.client

    def status(self) -> list[RankView]:
        """What each rank is and does, in rank order; asked now, and answered from memory by a rank that is silent."""
        self._ask(_STATUS_PATIENCE)
        return self.views()

    def views(self) -> list[RankView]:
        """The panel's rows."""
        return self._roster.views(stopped=self._stopped)

    def log(self, rank: int) -> str:
        """The end of a rank's log."""
        return self._roster.log(rank)

    # ── running code ────────────────────────────────────────────────────────────────────────────────

    def run(  # noqa: PLR0913 - each is an option of %%distributed
        self,
        code: str,
        ranks: str | Iterable[int] | None = None,
        *,
        number: int | None = None,
        fold: bool = True,
        by_rank: bool = False,
        quiet: bool = False,
        draw: bool = False,
        trace: str | None = None,
    ) -> None:
        """Run a cell and show what it shows; returns when it has ended on every rank.

        Args:
            code: the cell, as in a notebook: magics, ``!cmd`` and top-level ``await`` included.
            ranks: a SPEC such as ``"0-2"``, or ranks; all by default.
            number: what the ranks call the cell in tracebacks and history; counted by default.
            fold: show lines on which ranks agree once.
            by_rank: show all of rank 0's output, then rank 1's, and so on.
            quiet: show nothing; failures are raised all the same.
            draw: show a picture of each collective that the cell made, with the ranks' values before and after.
            trace: write a trace to this file, for https://ui.perfetto.dev: when each rank did what.

        Raises:
            CellError: it failed on some rank.
            SpecError: there are no such ranks, or the trace's file cannot be written. Nothing was run.
            StateError: the world is stopped, or still busy. Nothing was run.
            KeyboardInterrupt: it was interrupted.
        """
        self._run(code, None, ranks, number, fold=fold, by_rank=by_rank, quiet=quiet, draw=draw, trace=trace)

    def run_file(
        self, path: str, args: Iterable[object] = (), ranks: str | Iterable[int] | None = None, **options: Any
    ) -> None:
        """Run a script on ranks as ``torchrun path args`` would; its variables are the cells' own afterwards.

        Args:
            path: the script.
            args: its arguments.
            ranks: which ranks run it; all by default.
            **options: as of `run`.

        Raises:
            ScriptError: there is no such script. Nothing was run.
            CellError: it failed on some rank, or ended with an exit status other than 0.
        """
        words = [str(arg) for arg in args]
        self._run(programs.order(path, words), " ".join([path, *words]), ranks, **options)

    def _run(  # noqa: PLR0913 - each is an option of %%distributed
        self,
        code: str,
        script: str | None,
        ranks: str | Iterable[int] | None,
        number: int | None = None,
        *,
        fold: bool = True,
        by_rank: bool = False,
        quiet: bool = False,
        draw: bool = False,
        trace: str | None = None,
    ) -> None:
        chosen = self._choose(ranks)
        file = None if trace is None else tracing.check(trace)
        number = next(self._numbers) if number is None else number
        output = CellOutput(chosen, fold=fold, by_rank=by_rank, quiet=quiet)
        with self._stage.alone(), self._manuscript.cell(number, code, chosen, len(self.ranks), script):
            order = Run(self._desk.next_id(), code, chosen, number, draw, file is not None)
            self._stage.perform(order, output, Aftermath(order, output, file, self._roster.places))

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
        self._manuscript.called(getattr(function, "__name__", "call"), chosen, len(self.ranks))
        return self._transfers.call(function, args, kwargs, chosen)

    def spawn(
        self, function: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Call ``function(local_rank, *args, **kwargs)`` on every rank; see `nbcomm.spawn`."""
        chosen = self._choose(None)
        self._manuscript.called(getattr(function, "__name__", "spawn"), chosen, len(self.ranks))
        return self._transfers.call(function, tuple(args), dict(kwargs or {}), chosen, local_rank=True)

    def push(self, ranks: str | Iterable[int] | None = None, **variables: Any) -> None:
        """Bind variables on ranks; each rank gets a copy of its own.

        Raises:
            TransferError: a value cannot be pickled (nothing was sent then), or cannot be rebuilt there.
        """
        chosen = self._choose(ranks)
        self._transfers.push(variables, chosen)
        self._manuscript.pushed(variables, chosen, len(self.ranks))

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
    ) -> Answer | None:
        """Ask the first of some ranks that lives what a person asks while typing; None if none of them does."""
        self._check_running()
        chosen = self._resolve(ranks)
        rank = next((rank for rank in chosen if rank not in self._roster.dead), None)
        return None if rank is None else self._inquiries.ask(rank, kind, code, cursor, detail)

    def who(self, names: str | Iterable[str] = (), ranks: str | Iterable[int] | None = None) -> list[Variable]:
        """Say what the ranks' variables are, and which are equal on all of them; see `Variable`.

        Args:
            names: names, or expressions such as ``"model.fc.weight"``; by default all that users made, as ``%whos``.
            ranks: a SPEC such as ``"0-2"``, or ranks; all by default.
        """
        return self._surveys.who(names, self._choose(ranks))

    def diff(self, name: str, ranks: str | Iterable[int] | None = None, atol: float = 0.0) -> Comparison:
        """Say where a variable differs between ranks; ``str`` of what is returned is a text.

        Args:
            name: a name, or an expression such as ``"model.fc.weight"``.
            ranks: a SPEC such as ``"0-2"``, or ranks; all by default. Compared is with the lowest that has it.
            atol: numbers that are no further apart are as good as equal; with 0 all bits count.

        Raises:
            TransferError: no rank has it, or it cannot be compared.
        """
        return self._surveys.diff(name, self._choose(ranks), atol)

    def save(self, path: str, *, force: bool = False, everything: bool = False) -> str:
        """Write the cells that this session has run as a script, which torchrun runs to the same answers.

        Args:
            path: the file.
            force: write over a file that is not as nbcomm has written it, too.
            everything: with cells that failed, as comments, and with those that only define once more what is there.

        Returns:
            What was written and what was left out, in sentences.

        Raises:
            ScriptError: the file cannot be written, or is somebody's own. Nothing was written.
            StateError: no cell has run yet.
        """
        return self._manuscript.save(path, len(self.ranks), force=force, everything=everything)

    def interrupt(self) -> None:
        """End the running cell with KeyboardInterrupt on its ranks; harmless when they are idle."""
        self._desk.interrupt()

    def heal(self, ranks: str | Iterable[int] | None = None) -> list[str]:
        """Put new processes in the places of dead ranks; the others keep their variables, and so do groups.

        Args:
            ranks: which to replace; one that lives is ended first, and its variables are lost. By default all
                that are dead.

        Returns:
            What was replaced, in words: "rank 1", and whatever else of the world's processes was dead.

        Raises:
            SpecError: there are no such ranks.
            StartError: a new process did not come up; the ranks are dead.
            KeyboardInterrupt: it was interrupted; the ranks are dead if their processes were not up yet.
            StateError: the world is stopped, or still busy.
        """
        self._check_running()
        wanted = self._dead() if ranks is None else self._resolve(ranks)
        with self._stage.alone(), Presses() as presses:
            replaced = self._processes.heal(wanted, lambda: presses.pressed)
            if wanted:
                self._generations.newcomers.update(wanted)
                self._leave_word()
                self._generations.renew()
            if presses.pressed:
                raise Interrupted
        if replaced:
            self._roster.forget_errors()
        self._ask(_STATUS_PATIENCE)
        self._settle_panel(changed=True)
        return replaced

    def _settle_panel(self, changed: bool) -> None:  # noqa: FBT001 - a hook of the stage's
        """Let the notebook's file hold the panel's state; where something has changed, that of now."""
        if changed:
            self._tell_panel()
        if self.panel is not None:
            self.panel.settle()

    def _tell_panel(self) -> None:
        if self.panel is not None:
            ladder, timeline = self._stage.chronicle.story(len(self.ranks))
            views, waiting = self.views(), self._watch.waiting if self._watch is not None and self._stage.cell else ""
            waiting = waiting or self._desk.questions.waiting
            self.panel.update(views, headline(views, ladder, waiting), ladder=ladder, timeline=timeline)

    def _dead(self) -> list[int]:
        """The dead ranks, also those that die this instant: a process that is killed takes a while to end.

        Until it has, the system counts it among the living, so what is asked is the rank itself.
        """
        self._ask(_DEATH_PATIENCE)
        return self._processes.dead()

    def _ask(self, patience: float) -> None:
        """Hear from every living rank, if it answers within so many seconds."""
        question = self._roster.next_question()
        self.link.send(self._roster.living, Probe(question=question))
        deadline = time.monotonic() + patience
        while self._roster.silent(question) and time.monotonic() < deadline:
            self._roster.wait(TICK)

    # ── requests ────────────────────────────────────────────────────────────────────────────────────

    def _check_running(self) -> None:
        if self._stopped:
            raise StateError("This world is stopped; start one with %distributed start.")

    def _resolve(self, ranks: str | Iterable[int] | None) -> list[int]:
        n = len(self.ranks)
        if ranks is None:
            return self.ranks
        if isinstance(ranks, str):
            return rank_specs.parse(ranks, n)
        chosen = sorted(set(ranks))
        if not chosen or chosen[0] < 0 or chosen[-1] >= n:
            raise SpecError(f"The ranks {chosen} are not all in this world of {n}: 0 to {n - 1}.")
        return chosen

    def _choose(self, ranks: str | Iterable[int] | None) -> list[int]:
        self._check_running()
        chosen = self._resolve(ranks)
        gone = self._roster.dead_among(chosen)
        if gone:
            raise RankDiedError(
                f"Rank {rank_specs.fold(gone)} {self._roster.dead[gone[0]]}; nothing was run. Type %distributed heal "
                "to put a new process in its place (the others keep their variables), or choose other ranks with -r."
            )
        busy = self._desk.busy() & set(chosen)
        if busy and not self._stage.taken:
            raise StateError(
                f"Rank {rank_specs.fold(busy)} still runs an earlier cell; nothing was run. Wait for it, or type "
                f"%distributed interrupt, or %distributed heal {rank_specs.fold(busy)} to put new processes in place."
            )
        return chosen

    # ── what arrives, on other threads ──────────────────────────────────────────────────────────────

    def _receive(self, rank: int, message: FromRank, frames: Sequence[Any]) -> None:
        if self._resumption is not None and self._resumption.take(rank, message, frames):
            return
        if isinstance(message, Output):
            self._stage.show(rank, message)
        elif isinstance(message, Done):
            if self._stage.ended(rank, message):
                self._roster.note_error(rank, message.failure)
            self._answer(rank, message, frames)
        elif isinstance(message, Told):
            self._inquiries.hear(rank, message)
        elif isinstance(message, Asking | Withdrawn):
            self._desk.questions.hear(rank, message)
        elif isinstance(message, Mismatch):
            cell = self._stage.cell
            if cell is not None and cell[0].id == message.run and message.generation == self._generations.number:
                self._generations.abort(cell[0], "MismatchError", message.text)
        else:
            self._roster.hear(rank, message)

    def _answer(self, rank: int, done: Done, frames: Sequence[Any] = ()) -> None:
        self._generations.stale |= done.broken  # also where nobody waits for this request any more
        self._desk.hear(rank, done, frames)

    def _process_ended(self, rank: int, cause: str) -> None:
        self._generations.stale = True  # groups without it can go on
        self._desk.lose(rank, cause)
        self._inquiries.lose(rank)
        self._hurry()

    def _hurry(self) -> None:
        if self._watch is not None:
            self._watch.hurry()
