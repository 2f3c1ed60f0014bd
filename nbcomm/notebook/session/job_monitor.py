"""The scheduler's job of a session: what its user hears of it, and what is done before it ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...errors import NbcommError
from ...panel import JobView
from ..cluster.job_watch import JobWatch

if TYPE_CHECKING:
    from ...launch.launchers.slurm import Job
    from ...launch.nodes import Nodes
    from ..cluster.start_options import StartOptions
    from ..execution.cell_run import CellExecutor

_MAKING_ROOM = 20.0
"""Seconds in which a cell must end that is interrupted for what must run before the time of a job is over."""

_TICK = 2.0


class JobMonitor:
    """The monitor of the job that the nodes of a world are in; where there is none, it does nothing.

    Args:
        nodes: the world's.
        executor: shows what is said, below a cell.
        addressed: lets the remedies in a text name this world.
    """

    def __init__(self, nodes: Nodes, executor: CellExecutor, addressed: Callable[[str], str]) -> None:
        self._nodes = nodes
        self._executor = executor
        self._addressed = addressed
        self._watch: JobWatch | None = None
        self._said = ""
        self._gone = 0
        self._wanted = time.monotonic()

    def begin(
        self, options: StartOptions, run: Callable[[str], None], interrupt: Callable[[], None], busy: Callable[[], bool]
    ) -> None:
        """Look after the job from now on.

        Args:
            options: the user's: what is to run before the end, and after which rest the job is given back.
            run: runs a cell on all ranks.
            interrupt: ends the one that runs.
            busy: whether a request is under way.
        """
        job, self._wanted = self._nodes.job, time.monotonic()
        if job is None:
            return

        def resting() -> float:
            if busy() or self._executor.taken:
                self.use()
            return time.monotonic() - self._wanted

        def run_last() -> None:
            if options.before_end:
                self._run_last(options.before_end, run, interrupt)

        self._watch = JobWatch(
            job, self._tell, resting=resting, idle=options.idle, ended=self._nodes.lose_joined, last=run_last
        )

    def _tell(self, sentence: str) -> None:
        """Show what the user must know: in `troubles`, and below the cell that runs, or that comes next."""
        self._said = self._addressed(sentence)
        self._executor.tell(self._said)

    def _run_last(self, code: str, run: Callable[[str], None], interrupt: Callable[[], None]) -> None:
        """Run what the user wants to be run before the job's time is over, in place of the cell that runs."""
        deadline = time.monotonic() + _MAKING_ROOM
        while self._executor.taken and time.monotonic() < deadline:
            interrupt()
            time.sleep(_TICK)
        try:
            run(code)
        except NbcommError as error:
            self._tell(f"The cell of --before-end has failed: {error}")

    def use(self) -> None:
        """Note that somebody wants something of the ranks now."""
        self._wanted = time.monotonic()

    def notice(self, gone: int) -> None:
        """Look at the job now if more nodes have ended than before: perhaps they have ended with it."""
        if gone > self._gone:
            self.hurry()
        self._gone = gone

    def hurry(self) -> None:
        """Look at the job now: a rank has died, perhaps with it."""
        if self._watch is not None:
            self._watch.hurry()

    @property
    def troubles(self) -> list[str]:
        """The last sentence about it, if there is one."""
        return [self._said] if self._said else []

    def view(self) -> JobView | None:
        """Return what the panel shows; None if there is no job."""
        job = self._nodes.job
        return None if job is None else JobView(str(job), job.ends)

    def keep(self) -> Job | None:
        """Let the job outlive the world, and return it; None if there is none."""
        job, self._nodes.job = self._nodes.job, None
        return job

    def close(self) -> None:
        """Look no more."""
        if self._watch is not None:
            self._watch.close()
