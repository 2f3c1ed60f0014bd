"""The world as the notebook sees it: start it, run cells on it, send values to and fro, stop it.

`Session` is the public Python API; the magics are a thin layer over it.
"""

from __future__ import annotations

import atexit
import dataclasses
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec import structs

from ...annotations import as_written
from ...errors import Interrupted
from ...faults import take_all
from ...launch import backends, working_folder
from ...panel import Ladder, Panel, RankView, Timeline, table_text, useful_buttons
from ...panel.headline import headline
from ...protocol import Stop
from ...sentences import wrapped
from ...world_dir import telling_of_room
from ...world_info import WorldInfo
from ..cluster import GROUPS
from ..cluster.generations import Generations
from ..cluster.processes import Processes
from ..cluster.rank_table import RankTable
from ..cluster.start_options import Progress, StartOptions
from ..cluster.startup import Startup
from ..execution.cell_run import CellExecutor
from ..execution.dispatcher import Dispatcher
from ..execution.hang_watch import HangWatch
from ..execution.interrupts import InterruptCounter
from ..execution.reattach import Reattachment
from ..execution.reconcile import Reconciler
from ..output.cell_output import CellOutput
from ..widgets.mirrors import Mirrors
from . import kernel_restart
from .commands import Commands
from .job_monitor import JobMonitor
from .message_router import MessageRouter
from .this_notebook import this_notebook
from .world_names import addressed

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self  # in typing from Python 3.11 on

    from ...launch.launchers.slurm import Job
    from ...launch.nodes import Nodes

Actions = Callable[["Session"], dict[str, Callable[[], str]]]
"""What each button of the panel does; it returns a sentence."""

_STATUS_PATIENCE = 0.5
"""Seconds that a rank has to say what it does."""

_DEATH_PATIENCE = 2.0
"""Seconds that a rank has to say that it lives, before a heal that was asked for believes that it does; and how it is,
after it."""


_FAREWELL = 1.0
"""Seconds that a rank has to hear that the notebook leaves it. What is not heard by then may be lost with the link."""


@as_written
class Session(Commands):
    """N ranks that run cells. Make one with `nbcomm.start` or `nbcomm.attach`; it is a context manager.

    Attributes:
        name: what the notebook calls this world; empty for the one that it uses where it names none.
        options: what another world like this one would have to be.
        notice: what the user should know of the devices that were chosen, or of how the ranks were started; or empty.
        how_started: whether torch was imported before the start, in a sentence; empty after `attach`.
        panel: its panel, from the moment that its ranks are up.
    """

    def __init__(self, nodes: Nodes, options: StartOptions, *, attached: bool) -> None:
        """Put the parts together: no process is started here, and none is spoken to. See `start` and `attach`."""
        self.name = options.name
        self.options = options
        self.notice = self.printed = self.how_started = ""
        self.home = nodes.home
        self.link = nodes.link
        self.panel: Panel | None = None
        self._telling = threading.RLock()  # held from a look at the ranks until the panel has it
        self._rank_table = RankTable(nodes.log_tail, nodes.without_heal)
        self._dispatcher = Dispatcher(self.link, self._rank_table, self.addressed)
        self._stopped = False
        self._parted: tuple[float, str] | None = None
        self._parting = threading.RLock()
        self._folder = ""
        self._word: WorldInfo | None = None  # what another notebook needs to know
        self._written: WorldInfo | None = None  # what the world's file has of that
        self._watch: HangWatch | None = None
        self._generations = Generations(self._rank_table, nodes, self.link, self._dispatcher.ask_each)
        self._widgets = Mirrors(lambda rank, heard: self.link.send([rank], heard))
        self._executor = CellExecutor(
            self._dispatcher, self._generations, lambda: len(self.ranks), self._widgets, self._settle_panel, self._begun
        )
        super().__init__(self._bulk, self.link, self._rank_table, self._dispatcher, self._executor, attached=attached)
        self._router = MessageRouter(
            self._rank_table,
            self._dispatcher,
            self._executor,
            self._generations,
            self._inquiries,
            link=self.link,
            resumption=Reattachment() if attached else None,
            hurry=self._hurry,
        )
        self._job_monitor = JobMonitor(nodes, self._executor, self.addressed)
        # Behind all that it tells: a process may have ended already.
        self._processes = Processes(
            nodes, self._rank_table, self._router.process_ended, self._generations.look_for_store
        )

    def _bulk(self) -> Path | None:
        """Return where large values are passed to the ranks and back; None if some are on another machine."""
        return self.home.bulk if self._processes.nodes.are_here else None

    @classmethod
    def start(
        cls,
        nodes: Nodes,
        options: StartOptions,
        progress: Progress = lambda *_: None,
        actions: Actions = lambda _: {},
    ) -> Self:
        """Start a world; returns when its ranks can run cells.

        Args:
            nodes: start the processes; a daemon may still be importing torch.
            options: how many ranks, on what.
            progress: told how the start comes along.
            actions: what the panel's buttons do.

        Raises:
            StartError: the world did not start; nothing of it is left.
        """
        try:
            self = cls(nodes, options, attached=False)
        except BaseException:
            nodes.shutdown()
            raise
        self._listen()
        try:
            startup = Startup(options, self._processes, self._rank_table, progress)
            startup.launch()
            startup.await_ranks()
            startup.form_group(self._generations)
            self.notice, self.printed, self.how_started = startup.notice, startup.printed, nodes.head.how_started
            self._started = time.time()
            self.home.write_world(self._note_word())
            self._look_after(actions)
        except BaseException:
            self.stop()
            raise
        return self

    @classmethod
    def attach(cls, nodes: Nodes, info: WorldInfo, name: str = "", actions: Actions = lambda _: {}) -> Self:
        """Steer a world that another notebook has started, and left.

        Args:
            nodes: the world's own.
            info: what the other notebook has written down of it.
            name: what this notebook calls it; by default what the other one did.
            actions: what the panel's buttons do.

        Raises:
            StartError: its node does not answer. The caller lets go of the world.
        """
        self = cls(nodes, StartOptions(name=name or info.name, grace=info.grace), attached=True)
        try:
            self._processes.claim(info)
            self._listen()
            self._take_up(info)
            self._look_after(actions)
            hellos = [self._rank_table.hellos[rank] for rank in self.ranks]
            self._word = structs.replace(info, hellos=hellos, name=self.name, notebook=this_notebook())
            self._write_word()
        except BaseException:
            self.release()
            raise
        return self

    def _listen(self) -> None:
        """Let ranks reach this notebook, and end the world, or leave it, when this process ends."""
        self.link.deliver_to(self._router.receive)
        atexit.register(self._leave_or_stop)

    def _look_after(self, actions: Actions) -> None:
        """Show the ranks that have started, and watch over them."""
        self.panel = Panel(
            self.title,
            self.backend,
            self.status(),
            actions=actions(self),
            world=self.home.id,
            grace=self.options.grace if kernel_restart.would_keep_worlds() else 0.0,
            ran=self._executor.ran,
        )
        self.link.tell = self._executor.tell
        self._watch = HangWatch(
            self.link,
            self._rank_table,
            self._generations,
            cell=lambda: self._executor.cell,
            tell_panel=self._tell_panel,
            collective_log=self._executor.collective_log,
            look=self._look,
            compare=Reconciler(
                self.link,
                self._rank_table,
                self._dispatcher,
                self._processes.nodes.tell,
                held_back=lambda: self._router.resumption is not None,
            ).compare,
            addressed=self.addressed,
        )
        self._job_monitor.begin(self.options, self.run, self.interrupt, lambda: self.busy)

    def _look(self) -> None:
        """Notice if nobody would report a death: on a node, or in all of the job."""
        self._processes.look()
        self._job_monitor.notice(len(self._processes.nodes.gone))

    def _take_up(self, info: WorldInfo) -> None:
        self._started, self._folder = info.started, info.cwd
        self._processes.take_up(info)
        self.options = StartOptions.remembered(info.options, n=len(info.places), grace=info.grace, name=self.name)
        self._processes.nodes.compares = self.options.guard != "node"
        self.link.meet(self._rank_table.living)
        resumption = self._router.resumption
        assert resumption is not None  # noqa: S101 - for mypy
        snapshots = resumption.await_ranks(self._rank_table, self.link)
        self._generations.take_up(snapshots, info.port, info.plain)
        self._dispatcher.take_up(max([resumption.run, *(snapshot.heard for snapshot in snapshots)]))
        if resumption.run:
            resumption.request = self._dispatcher.take_over(resumption.ranks, resumption.run)
            resumption.repeat_answers(self._router.answer)
            self._dispatcher.lose_dead(resumption.request)

    def resume(self) -> None:
        """Show what a cell that another notebook has begun shows, from its beginning, and wait for its end.

        Nothing happens if the world was idle; else it raises what the cell raises, as `run` does.
        """
        resumption = self._router.resumption
        if resumption is None or resumption.request is None:
            self._router.resumption = None
            return
        with self._executor.alone(), InterruptCounter() as interrupts:
            try:
                output = CellOutput(resumption.ranks, folder=self.home.path)
                self._executor.conduct(resumption.request, output, interrupts, self._hand_over)
            finally:
                self._hand_over()  # if it did not come to that: or the rest would be held back for ever

    def _hand_over(self) -> None:
        """Show what was held back of another notebook's cell."""
        resumption = self._router.resumption
        if resumption is not None:
            resumption.hand_over(self._router.receive)
            self._router.resumption = None  # not before: what comes meanwhile would be shown before what was kept

    def _note_word(self) -> WorldInfo:
        """Note what another notebook would need to know, and return it."""
        hellos = [self._rank_table.hellos[rank] for rank in self.ranks]
        cwd = working_folder.written() or self._folder
        self._folder = cwd
        self._word = WorldInfo(
            self._rank_table.title,
            self._rank_table.places,
            hellos,
            self._generations.port,
            self.options.grace,
            self._started,
            cwd,
            self.name,
            self._generations.plain,
            this_notebook(),
            self._processes.nodes.joined(),
            job.info if (job := self._processes.nodes.job) is not None else None,
            vars(self.options),
        )
        return self._word

    def _write_word(self) -> None:
        """Write down what another notebook would need to know; where there is no room, the next cell tries again.

        Until then that notebook has what was written before: what differs, the ranks and their nodes tell it anyway.
        """
        if self._word is not None and self._word is not self._written:
            with suppress(OSError):
                self.home.write_world(self._word)
                self._written = self._word

    # ── start and stop ──────────────────────────────────────────────────────────────────────────────

    def stop(self) -> None:
        """End the world: its processes, sockets and files. Stopping twice is no error."""
        self._part(Stop(), self._shut_down)

    def keep_job(self) -> Job | None:
        """Let the scheduler's job that the world is in outlive it, if it is in one; return the job."""
        return self._job_monitor.keep()

    def release(self) -> None:
        """Let go of the world without ending it: `nbcomm.attach` takes it up again, until its grace is over."""
        self._part(None, lambda _: self._processes.release())

    def _shut_down(self, interrupts: InterruptCounter) -> None:
        for sentence in self._processes.shutdown(lambda: interrupts.pressed):
            sys.stderr.write(wrapped(f"nbcomm: {sentence}\n"))

    def _part(self, last: Stop | None, leave: Callable[[InterruptCounter], None]) -> None:
        """Hang up, and then leave the processes, whatever happens meanwhile; or wait while another thread does it."""
        with self._parting:
            if self._stopped:
                return
            how = "was stopped" if last is not None else "was left"
            # First: whatever fails from here on, nothing is run on it any more.
            self._stopped, self._parted = True, (time.time(), how)
            with InterruptCounter() as interrupts:  # half of it would leave a world that nobody can reach
                take_all(
                    lambda: _for_sure(lambda: self._hang_up(last, how)),
                    lambda: _for_sure(lambda: leave(interrupts)),
                )
        if interrupts.pressed:
            raise Interrupted

    def _hang_up(self, last: Stop | None, how: str) -> None:
        self._generations.over = True
        take_all(
            lambda: atexit.unregister(self._leave_or_stop),
            self._watch.close if self._watch is not None else lambda: None,
            self._job_monitor.close,
            lambda: self._say_farewell(last),
            lambda: self.link.deliver_to(None),
            self._widgets.close,
            lambda: self._dispatcher.close(how),
            self._close_panel,
        )

    def _say_farewell(self, last: Stop | None) -> None:
        if last is not None:
            self.link.send(self._rank_table.hellos, last)
        else:
            self._ask(_FAREWELL)  # who has heard what was seen does not tell it to the next notebook once more

    def _close_panel(self) -> None:
        if self.panel is not None:
            self.panel.close(tell_page=not kernel_restart.restarting())

    def _leave_or_stop(self) -> None:
        """End the world with this process, unless another kernel of the notebook is about to attach to it."""
        if kernel_restart.worlds_are_kept():
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
        return bool(self._dispatcher.open())

    @property
    def title(self) -> str:
        """How many ranks, on what; its name first, if it has one."""
        return f"{self.name}: {self._rank_table.title}" if self.name else self._rank_table.title

    def addressed(self, text: str) -> str:
        """Let the remedies in a text name this world."""
        return addressed(text, self.name)

    @property
    def backend(self) -> str:
        """The backend of the process group."""
        return self._rank_table.places[0].backend

    @property
    def plain(self) -> str:
        """Why the process groups are torch's own, which have no verdicts on hangs; empty if they are nbcomm's."""
        return self._generations.plain

    @property
    def troubles(self) -> list[str]:
        """What has happened to the processes that serve the ranks, in sentences; `heal` mends it."""
        return [*self._job_monitor.troubles, *(self.addressed(trouble) for trouble in self._processes.troubles)]

    @property
    def client(self) -> Any:
        """The ``Client`` of ipyparallel for the same engines; engine id = rank."""
        self._check_running()
        with telling_of_room():
            return self._processes.client

    def status(self) -> list[RankView]:
        """Return each rank's state in rank order: asked now, and the last known one of a rank that is silent."""
        self._ask(_STATUS_PATIENCE)
        return self.views()

    def status_text(self) -> str:
        """Return `status` as text: the table that the panel leaves in the notebook's file."""
        views, said, ladder, timeline = self._picture(self.status())
        return table_text(
            views,
            self.title,
            said,
            ladder=ladder,
            timeline=timeline,
            past=self._executor.collective_log.past(),
            backend=backends.told(self.backend, ours=not self.plain),
            job=self._job_monitor.view(),
        )

    def views(self) -> list[RankView]:
        """Return the panel's rows."""
        return self._rank_table.views(self._parted)

    def log(self, rank: int) -> str:
        """Return the end of a rank's log."""
        return self._rank_table.log(rank)

    def interrupt(self) -> None:
        """End the running cell with KeyboardInterrupt on its ranks; harmless when they are idle."""
        self._dispatcher.interrupt()

    def heal(self, ranks: str | Iterable[int] | None = None) -> list[str]:
        """Put new processes in the places of dead ranks, and form all groups again; the others keep their variables.

        Args:
            ranks: which to replace; one that lives is ended first, and its variables are lost. By default all
                that are dead.

        Returns:
            What was replaced, in words: "rank 1", and whatever else of the world's processes was dead; where all are
            alive, "the process groups".

        Raises:
            SpecError: there are no such ranks.
            StartError: a new process did not start; the ranks are dead.
            KeyboardInterrupt: it was interrupted; the ranks are dead if their processes were not up yet.
            StateError: the world is stopped, or still busy.
        """
        self._check_running()
        chosen = None if ranks is None else self._resolve(ranks)
        with telling_of_room(), self._executor.alone(), InterruptCounter() as interrupts:
            self._processes.await_daemons(lambda: interrupts.pressed)
            wanted = self._dead() if chosen is None else chosen
            try:
                replaced = self._processes.heal(wanted, lambda: interrupts.pressed)
            finally:  # whatever fails behind it, a rank that is new has no groups
                self._generations.newcomers.update(set(wanted) - set(self._rank_table.dead))
            if wanted:
                self._note_word()
                self._write_word()
            if not self._dispatcher.busy():  # else the next cell says whom it waits for
                self._generations.stale = True
                self._generations.renew(lambda: interrupts.pressed)
                replaced = replaced or [GROUPS]
            if interrupts.pressed:
                raise Interrupted
        if replaced:
            self._rank_table.forget_errors()
            self._executor.collective_log.forget()
        self._ask(_DEATH_PATIENCE)
        self._settle_panel(changed=True)
        return replaced

    def _settle_panel(self, changed: bool) -> None:  # noqa: FBT001 - a hook of the executor's
        """Let the notebook's file hold the panel's state; where something has changed, that of now."""
        with self._telling:
            if changed or (self.panel is not None and self.panel.of_a_cell):
                self._tell_panel()
            if self.panel is not None:
                self.panel.settle()

    def _tell_panel(self) -> None:
        if self.panel is None:
            return
        with self._telling:  # the watch tells it, too: what that has seen earlier must not come later
            views, said, ladder, timeline = self._picture(self.views())
            past = self._executor.collective_log.past()
            useful = useful_buttons(
                busy=self.busy or self._executor.taken,
                hurt=bool(self._rank_table.dead or self._processes.troubles) and not self._processes.without_heal,
            )
            self.panel.update(
                views,
                said,
                ladder=ladder,
                timeline=timeline,
                useful=useful,
                past=past,
                job=self._job_monitor.view(),
            )

    def _picture(self, views: list[RankView]) -> tuple[list[RankView], str | None, Ladder, Timeline]:
        """Return what panel, saved table and status show: the ranks' states, the sentence, the ladder, the timeline."""
        table = self._rank_table
        ladder, timeline = self._executor.collective_log.story(len(self.ranks), table.nodes, table.died)
        asking = self._dispatcher.input_requests.asking
        views = [dataclasses.replace(view, note=asking.get(view.rank, view.note)) for view in views]
        waiting = self._watch.waiting if self._watch is not None and self._executor.cell else ""
        return views, headline(views, ladder, waiting or self._dispatcher.input_requests.waiting), ladder, timeline

    def _dead(self) -> list[int]:
        """Return the dead ranks, also those that are dying: a process that is killed takes a while to end.

        Until it has, the system counts it among the living, so what is asked is the rank itself.
        """
        self._ask(_DEATH_PATIENCE)
        return self._processes.dead()

    def _hear_ends(self) -> None:
        self._processes.dead()

    def _ask(self, patience: float) -> None:
        """Hear from every living rank, if it answers within so many seconds."""
        with self._rank_table.asking() as question:
            self.link.poll(question.number)
            question.wait(patience)

    def _begun(self) -> None:
        """Clear the errors of the cell before the one that begins."""
        self._write_word()
        self._rank_table.forget_errors()
        self._hurry()

    def _hurry(self) -> None:
        self._job_monitor.use()
        if self._watch is not None:
            self._watch.hurry()
        if self._rank_table.dead or self._processes.nodes.gone:
            self._job_monitor.hurry()


def _for_sure(step: Callable[[], object]) -> None:
    """Take a step, and once more if it fails: nobody could reach a world that was left by half."""
    try:
        step()
    except Exception:  # noqa: BLE001 - if it fails again, that is told
        step()
