"""A job of PBS, SGE, LSF or HTCondor, whose script starts nbcomm's program on each of its nodes.

Such a job is one start of all programs, as mpiexec is one: its nodes go back when they have ended. What its script and
the programs say is in the directory of their join tokens, which the nodes see as well; so this tells, too, how they
ended.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from ...errors import StartError
from ...node.join_token import JoinToken
from ...node.processes.exit_status import how_it_ended
from ...node.start import last_words
from ...threads import keep
from ...world_dir import private_file
from ...world_info import Launcher, behind
from .mpi import FIRST, MPIEXEC, one_each, open_mpis
from .scheduler_cli import ask
from .schedulers import SAID, Phase, Scheduler
from .shared_launcher import SharedLauncher
from .slurm import Request

_SOON, _LATER = 0.5, 10.0
"""Seconds between two questions to the scheduler: more and more, for each one is work for its server."""

_TICK = 0.5
"""Seconds between two looks at what the script has written."""

_NEW = 30.0
"""Seconds in which a scheduler may not know a job yet that it has taken."""

_TRIES = 3
"""How often a job is cancelled whose scheduler refuses that: its server may be busy."""

_LATE = 5.0
"""Seconds by which a shared home may show a script's last line later than the job's end."""

_END = 15.0
"""Seconds in which a job that was cancelled must be over."""


class BatchProgram:
    """A job, as the command that starts the programs of all nodes; see `Program`.

    Nobody waits for the scheduler but a thread of its own, and who submits or cancels.

    Args:
        scheduler: takes the job.
        script: what is submitted.
        logs: the files that get what the programs say.
    """

    def __init__(self, scheduler: Scheduler, script: Path, logs: Sequence[Path]) -> None:
        self._scheduler = scheduler
        self._script = script
        self._logs = [*logs]
        self._starting, self._asking, self._killing = threading.Lock(), threading.Lock(), threading.Lock()
        self._closed = threading.Event()
        self._begun = self._known = self._cancelled = self._is_silent = False
        self._number = ""
        self._phase = Phase.WAITS
        self._status: int | None = None
        self._began = 0.0

    def __str__(self) -> str:
        """Return how it is named in a sentence."""
        return f"{self._scheduler.name} job {self._number.partition('.')[0]}".rstrip()

    def start(self) -> None:
        """Put the job into the queue.

        Raises:
            StartError: the scheduler does not take it.
        """
        one, path = self._scheduler, os.fspath(self._script)
        self._begun = True
        self._status = 1  # where it is not taken
        if one.reads:
            said = ask(one.name, [*one.submit], self._script.read_text())
        else:
            said = ask(one.name, [*one.submit, path])
        found = re.search(one.number, said, re.MULTILINE)
        if found is None:
            raise StartError(f"{one.submit[0]} printed no job number; it said:\n{said.strip()}")
        self._number, self._status, self._began = found[1], None, time.monotonic()
        keep(f"nbcomm-job-{self._number}", self._watch)

    def start_once(self) -> bool:
        """Put it into the queue, if that was not done; return whether it was not.

        Raises:
            StartError: the scheduler does not take it.
        """
        with self._starting:
            if self._begun:
                return False
            self.start()
            return True

    @property
    def is_begun(self) -> bool:
        """Whether it was submitted."""
        return self._begun

    @property
    def status(self) -> int | None:
        """None until it is over; then 0 if all programs have ended well, or it was cancelled."""
        return self._status

    @property
    def how(self) -> str:
        """How it has ended, in words."""
        if self._is_silent:
            return "is over, and its script wrote no exit code: the job was cancelled, or its time was over"
        return "was cancelled" if self._cancelled else how_it_ended(self._status)

    @property
    def _is_over(self) -> bool:
        return self._phase is Phase.OVER

    @property
    def waiting(self) -> str:
        """What it waits for, in words; empty once it runs, or is over."""
        if self._status is not None or self._phase is Phase.RUNS or any(log.exists() for log in self._logs):
            return ""
        if self._phase is Phase.HELD:
            return f"{self} is held in the queue"
        return f"{self} waits in the queue"

    def kill(self) -> None:
        """Cancel it, and wait until it is over."""
        with self._killing:
            if not self._number or self._is_over or self._status == 0:
                return
            self._cancel()
            deadline = time.monotonic() + _END
            while self._cancelled and self._ask() is not Phase.OVER and time.monotonic() < deadline:
                time.sleep(_SOON)
            if self._is_over:
                self._status = 0  # the scheduler has ended all that it had started

    def _cancel(self) -> None:
        """Cancel it, and try again where the scheduler refuses that; at the latest it ends with its programs."""
        for _ in range(_TRIES):
            with suppress(StartError):
                ask(self._scheduler.name, [*self._scheduler.cancel, self._number])
                self._cancelled = True
                return
            if self._ask() is Phase.OVER:
                return
            time.sleep(_SOON)

    def last_words(self) -> str:
        """Return the end of what the programs said."""
        said = []
        for log in self._logs:
            with suppress(OSError), log.open("rb") as file:
                said.append(last_words(file, first=FIRST))
        text = "\n".join(line for one in said for line in one.splitlines() if not line.startswith(SAID))
        if text or not self._number:
            return text
        return f"({self} has written nothing to {self._logs[0]}. Do its nodes have the same home as this machine?)"

    def close(self) -> None:
        """Look no more."""
        self._closed.set()

    def _watch(self) -> None:
        """Look until it is over."""
        pause, asks, over = _SOON, self._began, 0.0
        while not self._closed.is_set():
            now = time.monotonic()
            if (status := self._written()) is not None:
                self._status = status
                return
            if over and now >= over:
                self._is_silent = not self._cancelled
                self._status = int(self._is_silent)
                return
            if not over and now >= asks:
                over = now + _LATE if self._ask() is Phase.OVER else 0.0
                asks, pause = now + pause, min(_LATER, pause * 1.5)
            self._closed.wait(min(_TICK, pause))

    def _ask(self) -> Phase:
        """Ask the scheduler what has become of it; one that does not answer says nothing about that."""
        one = self._scheduler
        with self._asking:
            try:
                phase = one.phase(ask(one.name, one.of(self._number)))
            except StartError as error:
                if not (one.unknown and re.search(one.unknown, str(error))):
                    return self._phase
                phase = None
            if phase is not None:
                self._phase, self._known = phase, True
            elif self._known or self._cancelled or time.monotonic() - self._began > _NEW:
                self._phase = Phase.OVER
            return self._phase

    def _written(self) -> int | None:
        """Return the exit code that the script has written: of those of several nodes, the first one that is not 0."""
        found = [_written_in(log) for log in self._logs]
        bad = [status for status in found if status]
        return bad[0] if bad else None if None in found else 0


def _written_in(log: Path) -> int | None:
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 200))
        end = re.search(rf"^{SAID} (\d+)$", file.read().decode(errors="replace"), re.MULTILINE)
        return None if end is None else int(end[1])
    return None


class Batch(SharedLauncher):
    """One start of the programs of all nodes, as a job.

    Args:
        scheduler: takes it.
        asked: what it is asked for.
        launcher: how a program is started on each node, but for mpiexec.
    """

    def __init__(self, scheduler: Scheduler, asked: Request, launcher: Launcher) -> None:
        super().__init__([f"program {number} of the {scheduler.name} job" for number in range(asked.nodes)], launcher)
        self._scheduler = scheduler
        self._asked = asked
        self._program: BatchProgram | None = None

    def files(self, folder: Path) -> dict[str, str]:
        """Return the texts of the files that the job needs in the directory of the tokens, the submitted one last."""
        one = self._scheduler
        texts = {"script": one.script(self._asked, self._command(folder), folder)}
        if described := one.description(self._asked, folder):
            texts["description"] = described
        return texts

    def _command(self, folder: Path) -> list[str]:
        """Return what the script runs."""
        command = self._launcher.command("nbcomm.node", os.fspath(folder))
        if not self._scheduler.mpi:
            return command
        prologue = self._launcher.prologue
        try:
            options = one_each([], prologue)
        except StartError:  # the nodes may have what this machine has not
            options = open_mpis([])
        return behind(prologue, [MPIEXEC, "-n", str(self._asked.nodes), *options, *command])

    def begin(self, tokens: Sequence[JoinToken]) -> BatchProgram:
        """Write the tokens and the script, and return the program that starts all nodes."""
        folder = self._write(tokens)
        script = folder
        for name, text in self.files(folder).items():
            script = folder / name
            with private_file(script) as file:
                file.write(text.encode())
        self._program = BatchProgram(self._scheduler, script, self._scheduler.logs(folder, self._asked.nodes))
        return self._program

    def await_run(self, tell: Callable[[str], None], joins: Callable[[], bool]) -> bool:
        """Wait until the job runs; return whether there was a queue."""
        assert self._program is not None  # noqa: S101 - for mypy
        while (said := self._program.waiting) and not joins():
            tell(said)
            time.sleep(_TICK)
        return True
