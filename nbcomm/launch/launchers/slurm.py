"""Slurm: a job that holds nodes, and a step in it for each node's program.

The job's own script only waits. What runs on a node is started there by srun, as ssh would start it on a host. So the
nodes are kept when ranks are replaced or the world is restarted: nothing waits in the queue again. A notebook that
already is in a job (``SLURM_JOB_ID``) uses that one.

The script ends the job when nothing has run in it for a while, which ends a job whose notebook has died: the daemons
end the ranks after the grace, and then no step is left.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from ...errors import StartError
from ...rank_spec import capital
from ...world_info import JobInfo, Launcher
from .scheduler_cli import ask

_SOON, _LATER = 0.5, 10.0
"""Seconds between two looks at a job in the queue: more and more, for each one is work for Slurm's controller."""

UNUSED = 120
"""Seconds without any program after which a job ends; a world that is restarted must not take longer."""

_OVER = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "REVOKED",
    "TIMEOUT",
)
"""The states of a job that has no nodes any more."""

_WORDS = {
    "BOOT_FAIL": "has failed because a node did not boot",
    "CANCELLED": "was cancelled",
    "COMPLETED": "has ended",
    "COMPLETING": "is ending",
    "DEADLINE": "has reached its deadline",
    "FAILED": "has failed",
    "NODE_FAIL": "has lost a node",
    "OUT_OF_MEMORY": "has run out of memory",
    "PREEMPTED": "was preempted by another job",
    "TIMEOUT": "has reached its time limit",
}

_SAID = ("", "TimeLimit")
"""Reasons of a job's end that say no more than its state."""

_OTHER_JOB = (
    "start this notebook in another job; or run import os; del os.environ['SLURM_JOB_ID'] in a cell, and then "
    "%distributed {} to queue for a job of its own"
)
"""What to do where the job is over that the notebook is in: another start would use it, too."""

_SRUN = ("--overlap", "--nodes=1", "--ntasks=1", "--mem=0", "--cpu-bind=none", "--mpi=none", "--kill-on-bad-exit=0")
"""A step that shares its node with the job's other steps, and has all of it that the job has."""

SCRIPT = """\
#!/bin/bash
{directives}
# Holds the nodes for nbcomm, which starts its programs on them with srun. Ends when none has run for {idle} s.
idle=0
while [ $idle -lt {idle} ]; do
  sleep {tick}
  steps=$(squeue --noheader --steps --jobs="$SLURM_JOB_ID" --format=%i) || steps=unknown
  if printf '%s\\n' "$steps" | grep -Eqv '^$|\\.(batch|extern|interactive)$'
  then idle=0
  else idle=$((idle + {tick}))
  fi
done
"""


@dataclass(frozen=True)
class Request:
    """What a job is asked for.

    Attributes:
        nodes: how many.
        tasks: the most ranks on a node.
        gpus: for each node.
        partition: see sbatch; so are ``time`` and ``account``.
        lines: options of sbatch as they stand: "--constraint=a100".
    """

    nodes: int
    tasks: int
    gpus: int = 0
    partition: str = ""
    time: str = ""
    account: str = ""
    lines: tuple[str, ...] = ()

    def script(self) -> str:
        """Return the script for sbatch."""
        asked = {
            "job-name": "nbcomm",
            "nodes": self.nodes,
            "ntasks-per-node": self.tasks,
            "gpus-per-node": self.gpus,
            "partition": self.partition,
            "time": self.time,
            "account": self.account,
            "output": "/dev/null",
        }
        said = [f"--{name}={value}" for name, value in asked.items() if value] + ["--no-requeue", "--no-kill"]
        kept = with_own(said, self.lines, "#SBATCH", lambda line: re.split("[= ]", line, maxsplit=1)[:1])
        directives = "\n".join(f"#SBATCH {option}" for option in kept)
        return SCRIPT.format(directives=directives, idle=UNUSED, tick=min(15, UNUSED))


def with_own(ours: Sequence[str], lines: Sequence[str], prefix: str, names: Callable[[str], list[str]]) -> list[str]:
    """Return the options of a job; the user's own line replaces ours, and stands as it was written.

    Args:
        ours: without the prefix.
        lines: the user's, which may have it.
        prefix: what a line of the script begins with that the scheduler reads.
        names: returns what an option sets, the most important first.
    """
    own = [line.removeprefix(prefix).strip() for line in lines]
    named = {name for line in own for name in names(line)}
    return [*(line for line in ours if not named & {*names(line)[:1]}), *own]


class JobState(NamedTuple):
    """What Slurm says of a job.

    Attributes:
        state: its word for it: "PENDING".
        reason: why it waits.
        starts: when it starts, or is expected to, in seconds of `time.time`; None if that is not known.
        ends: when its time is over; likewise.
        nodes: those that it has, as Slurm writes them.
    """

    state: str
    reason: str = ""
    starts: float | None = None
    ends: float | None = None
    nodes: str = ""

    @property
    def is_over(self) -> bool:
        """Whether it has no nodes any more, and never will."""
        return self.state in _OVER

    @property
    def has_nodes(self) -> bool:
        """Whether something can be started on its nodes, now or when it gets them."""
        return not self.is_over and self.state != "COMPLETING"

    @classmethod
    def read(cls, line: str) -> JobState:
        """Read what squeue prints in the format of `FORMAT`.

        >>> JobState.read("PENDING|Priority|1700000000|N/A|")
        JobState(state='PENDING', reason='Priority', starts=1700000000.0, ends=None, nodes='')
        """
        state, reason, starts, ends, nodes = [*line.strip().split("|"), "", "", "", ""][:5]
        return cls(state, "" if reason == "None" else reason, _seconds(starts), _seconds(ends), nodes)


FORMAT = "%T|%r|%S|%e|%N"


class Job:
    """A job of Slurm.

    Args:
        info: what is written down of it.

    Attributes:
        info: as above.
        ends: when its time is over, by `time.time`, if that is known.
        over: why it has no nodes any more, in words; empty while it has, or waits for them.
        lost: the nodes that it had, and will not have again.
        doubted: set when something has happened that its end would explain.
    """

    def __init__(self, info: JobInfo) -> None:
        self.info = info
        self.ends: float | None = None
        self.over = ""
        self.lost: set[str] = set()
        self.doubted = threading.Event()

    @classmethod
    def submit(cls, request: Request) -> Job:
        """Put a job into the queue.

        Raises:
            StartError: Slurm does not take it.
        """
        said = _ask(["sbatch", "--parsable"], request.script())
        return cls(JobInfo(said.strip().split(";")[0], ours=True))

    @classmethod
    def around(cls) -> Job | None:
        """Return the job that this process is in; None if it is in none."""
        number = os.environ.get("SLURM_JOB_ID", "")
        return cls(JobInfo(number, ours=False)) if number else None

    def __str__(self) -> str:
        """Return how it is named in a sentence."""
        return f"Slurm job {self.info.number}"

    def look(self) -> JobState:
        """Return its state.

        Raises:
            StartError: Slurm's controller does not answer.
        """
        command = ["squeue", "--noheader", "--states=all", f"--jobs={self.info.number}", f"--format={FORMAT}"]
        try:
            said = _ask(command)
        except StartError as error:
            if "Invalid job id" not in str(error):  # that of a job that is over, and forgotten
                raise
            said = ""
        seen = JobState.read(said.splitlines()[0]) if said.strip() else JobState("COMPLETED")
        self.ends = seen.ends
        if seen.is_over and not self.over:
            why = "" if seen.reason in _SAID else f" ({seen.reason})"
            self.over = f"{self} {_WORDS.get(seen.state, f'is {seen.state}')}{why}"
        return seen

    def await_nodes(self, tell: Callable[[str], None]) -> list[str]:
        """Wait until it has its nodes; return their names.

        Args:
            tell: called with its place in the queue, in words, whenever there is news.

        Raises:
            StartError: it has ended.
        """
        pause = _SOON
        while (seen := self.look()).state != "RUNNING":
            if seen.is_over and not self.info.ours:
                raise StartError(f"{self.over}; {_OTHER_JOB.format('start')}.")
            if seen.is_over:
                raise StartError(f"{self.over} before it had its nodes.")
            tell(f"{self} {self._waits(seen)}")
            time.sleep(pause)
            pause = min(_LATER, pause * 1.5)
        return self.hosts(seen)

    def hosts(self, seen: JobState) -> list[str]:
        """Return the names of the nodes that it had in a state.

        Raises:
            StartError: Slurm's controller does not answer.
        """
        return _ask(["scontrol", "show", "hostnames", seen.nodes]).split()

    def _waits(self, seen: JobState) -> str:
        if seen.state != "PENDING":
            return _WORDS.get(seen.state, f"is {seen.state}")
        said = ["waits in the queue", *([f"({seen.reason})"] if seen.reason else [])]
        with suppress(StartError):
            before = _ask(["squeue", "--noheader", "--states=pending", "--sort=-p,i", "--format=%i"]).split()
            if self.info.number in before:
                said.append(f"at place {before.index(self.info.number) + 1}")
        if seen.starts is not None:
            said.append(f"and is expected to start {_clock(seen.starts)}")
        return " ".join(said)

    def launcher(self, host: str, python: str) -> Launcher:
        """Return how a program is started on one of its nodes."""
        return Launcher(python, host, ["srun", f"--jobid={self.info.number}", *_SRUN, f"--nodelist={host}"])

    @property
    def in_place_of_it(self) -> str:
        """What to do when it is over, as a sentence."""
        again = "type %distributed restart to queue again"
        return f"{capital(again if self.info.ours else _OTHER_JOB.format('restart'))}."

    def without_heal(self, host: str) -> str:
        """Return why nothing can be started on one of its nodes any more, and what to do; empty where it can."""
        if self.over:
            return f"No process can be started there again. {self.in_place_of_it}"
        if host in self.lost:
            return (
                f"{self} has lost {host}, so no process can be started there again. Type %distributed restart to use "
                "the nodes that it still has."
            )
        return ""

    def cancel(self) -> bool:
        """End it, if it was submitted for the world; return whether Slurm was told to."""
        if self.info.ours and not self.over:
            with suppress(StartError):  # its script ends it when nothing runs in it
                _ask(["scancel", self.info.number])
                return True
        return False


def tasks_around() -> list[int]:
    """Return how many tasks Slurm has planned on each node of the job that this process is in; nothing if none.

    >>> import os; os.environ["SLURM_TASKS_PER_NODE"] = "4(x2),3"; tasks_around()
    [4, 4, 3]
    >>> del os.environ["SLURM_TASKS_PER_NODE"]; tasks_around()
    []
    """
    counts: list[int] = []
    for word in os.environ.get("SLURM_TASKS_PER_NODE", "").split(","):
        if found := re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", word):
            counts += [int(found[1])] * int(found[2] or 1)
    return counts


def _ask(command: Sequence[str], written: str = "") -> str:
    """Run a command of Slurm and return what it prints.

    Raises:
        StartError: it is not there, has failed, or does not answer.
    """
    return ask("Slurm", command, written, {"SLURM_TIME_FORMAT": "%s"})


def _seconds(text: str) -> float | None:
    return float(text) if text.isdigit() else None


def _clock(when: float) -> str:
    """Return a time of day, with the day where it is another one."""
    then, now = time.localtime(when), time.localtime()
    return time.strftime("at %H:%M" if then[:3] == now[:3] else "on %d %b at %H:%M", then)
