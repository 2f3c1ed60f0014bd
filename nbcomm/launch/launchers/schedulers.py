"""The schedulers beside Slurm, each in its own words: what is submitted, and how it is asked about a job."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from .slurm import Request, with_own

SAID = "nbcomm: the programs have ended with exit code"
"""How the script's last line begins."""

SCRIPT = """\
#!/bin/bash
{directives}# Starts nbcomm's program on each node. What it says is in the file that the next line names.
exec >{log} 2>&1
{command}
status=$?
echo "{said} $status"
exit $status
"""

_NUMBER = "NBCOMM_NUMBER"
"""The environment variable with a program's number where no mpiexec gives it one; see `join_token.read`."""


class Phase(Enum):
    """What has become of a job."""

    WAITS = auto()
    HELD = auto()
    RUNS = auto()
    OVER = auto()


@dataclass(frozen=True)
class Scheduler:
    """One of them.

    Attributes:
        name: as it is written in a sentence.
        directives: returns the options of a job, as they stand behind the prefix.
        prefix: what a line of the script begins with that the scheduler reads; empty where it reads another file.
        submit: the command that takes the script's path, or the script.
        reads: whether it takes the script from its standard input.
        number: where the job's id is in what that prints.
        look: the command that tells a job's state, without the id; so is ``cancel``, which ends it.
        behind: words behind the id there.
        state: where the state is in what it prints.
        phases: by state; a job in another one waits.
        cancel: see ``look``.
        unknown: what the command says of a job that is over and forgotten; empty if it says nothing then.
        mpi: whether mpiexec starts the programs; else the scheduler itself starts the script on each node.
    """

    name: str
    directives: Callable[[Request], Sequence[str]]
    prefix: str
    submit: tuple[str, ...]
    number: str
    look: tuple[str, ...]
    state: str
    phases: Mapping[str, Phase]
    cancel: tuple[str, ...]
    unknown: str = ""
    reads: bool = False
    behind: tuple[str, ...] = ()
    mpi: bool = True

    def script(self, asked: Request, command: Sequence[str], folder: Path) -> str:
        """Return what runs in the job.

        Args:
            asked: what the job is asked for.
            command: starts the programs, or the one of a node.
            folder: has the programs' tokens, and gets what they say.
        """
        lines = "".join(f"{self.prefix} {line}\n" for line in self._kept(asked)) if self.prefix else ""
        log = shlex.quote(f"{folder}/log") + ("" if self.mpi else f".${_NUMBER}")
        return SCRIPT.format(directives=lines, log=log, command=shlex.join(command), said=SAID)

    def description(self, asked: Request, folder: Path) -> str:
        """Return the file that is submitted where that is not the script; empty where it is."""
        if self.prefix:
            return ""
        own = [
            "executable = /bin/bash",
            "transfer_executable = false",
            f"arguments = \"'{folder}/script'\"",
            f"initialdir = {folder}",
        ]
        return "\n".join([*own, *self._kept(asked), "queue", ""])

    def _kept(self, asked: Request) -> list[str]:
        return with_own(self.directives(asked), asked.lines, self.prefix, _names)

    def logs(self, folder: Path, nodes: int) -> list[Path]:
        """Return the files with what the programs say."""
        return [folder / "log"] if self.mpi else [folder / f"log.{number}" for number in range(nodes)]

    def of(self, number: str) -> list[str]:
        """Return the command that tells the state of a job."""
        return [*self.look, number, *self.behind]

    def phase(self, said: str) -> Phase | None:
        """Return what has become of a job, by what the scheduler says of it; None if it does not know the job."""
        if not said.strip() or (self.unknown and re.search(self.unknown, said)):
            return None
        found = re.findall(self.state, said, re.MULTILINE)
        return self.phases.get(found[-1], Phase.WAITS) if found else Phase.WAITS


def _names(line: str) -> list[str]:
    """Return what an option sets, the most important first.

    >>> _names("-q short"), _names("-l select=2:ncpus=8"), _names('-R "span[ptile=8]"')
    (['-q'], ['-l select', '-l ncpus'], ['-R span', '-R ptile'])
    >>> _names("-l nodes=2:ppn=8"), _names("Request_CPUs = 8")
    (['-l nodes', '-l ppn', '-l select', '-l place'], ['request_cpus'])
    """
    option, _, rest = line.partition(" ")
    if not option.startswith("-"):
        return [line.partition("=")[0].strip().lower()]
    if option not in ("-l", "-R"):
        return [option]
    keys = re.findall(r"(\w+)[=\[]", rest)
    other = ["select", "place"] if "nodes" in keys else []  # PBS refuses both, and its older versions know only nodes
    return [f"{option} {key}" for key in [*keys, *other]]


def _given(option: str, value: object) -> list[str]:
    """Return an option with its value, or nothing where there is none."""
    return [option.format(value)] if value else []


def _pbs(asked: Request) -> list[str]:
    gpus = f":ngpus={asked.gpus}" if asked.gpus else ""
    return [
        "-N nbcomm",
        "-S /bin/bash",
        "-j oe",
        "-o /dev/null",
        "-r n",
        f"-l select={asked.nodes}:ncpus={asked.tasks}:mpiprocs=1{gpus}",
        "-l place=scatter",
        *_given("-q {}", asked.partition),
        *_given("-l walltime={}", asked.time),
        *_given("-A {}", asked.account),
    ]


def _sge(asked: Request) -> list[str]:
    return [
        "-N nbcomm",
        "-S /bin/bash",
        "-j y",
        "-o /dev/null",
        "-r n",
        f"-pe mpi {asked.nodes * asked.tasks}",
        *_given("-l gpu={}", asked.gpus),
        *_given("-q {}", asked.partition),
        *_given("-l h_rt={}", asked.time),
        *_given("-A {}", asked.account),
    ]


def _lsf(asked: Request) -> list[str]:
    return [
        "-J nbcomm",
        "-o /dev/null",
        f"-n {asked.nodes * asked.tasks}",
        f'-R "span[ptile={asked.tasks}]"',
        *_given('-gpu "num={}"', asked.gpus),
        *_given("-q {}", asked.partition),
        *_given("-W {}", asked.time),
        *_given("-P {}", asked.account),
    ]


def _htcondor(asked: Request) -> list[str]:
    return [
        "universe = parallel",
        "batch_name = nbcomm",
        f'environment = "{_NUMBER}=$(Node)"',
        "should_transfer_files = if_needed",
        "output = /dev/null",
        "error = /dev/null",
        '+ParallelShutdownPolicy = "WAIT_FOR_ALL"',
        f"machine_count = {asked.nodes}",
        f"request_cpus = {asked.tasks}",
        *_given("request_gpus = {}", asked.gpus),
        *_given("allowed_job_duration = {}", asked.time),
        *_given("accounting_group = {}", asked.account),
    ]


SCHEDULERS: Mapping[str, Scheduler] = {
    "pbs": Scheduler(
        name="PBS",
        directives=_pbs,
        prefix="#PBS",
        submit=("qsub",),
        number=r"^(\d\S*)",
        look=("qstat",),
        state=r"^\d\S* +\S+ +\S+ +\S+ +(\w) ",
        phases={"H": Phase.HELD, "R": Phase.RUNS, "E": Phase.RUNS, "C": Phase.OVER, "F": Phase.OVER},
        unknown="Unknown Job|has finished",
        cancel=("qdel",),
    ),
    "sge": Scheduler(
        name="SGE",
        directives=_sge,
        prefix="#$",
        submit=("qsub", "-terse"),
        number=r"^(\d+)",
        look=("qstat", "-j"),
        # Older versions tell no state, but what a job uses once it runs.
        state=r"^(?:job_state +\d+: +(\w+)|(?=usage +\d+:))",
        phases={"": Phase.RUNS, "r": Phase.RUNS, "hqw": Phase.HELD, "Eqw": Phase.HELD},
        unknown="do not exist",
        cancel=("qdel",),
    ),
    "lsf": Scheduler(
        name="LSF",
        directives=_lsf,
        prefix="#BSUB",
        submit=("bsub",),
        reads=True,
        number=r"Job <(\d+)>",
        look=("bjobs", "-noheader", "-o", "stat"),
        state=r"^(\w+)",
        phases={"PSUSP": Phase.HELD, "RUN": Phase.RUNS, "DONE": Phase.OVER, "EXIT": Phase.OVER},
        unknown="is not found",
        cancel=("bkill",),
    ),
    "htcondor": Scheduler(
        name="HTCondor",
        directives=_htcondor,
        prefix="",
        submit=("condor_submit", "-terse"),
        number=r"^(\d+)\.",
        look=("condor_q",),
        behind=("-af", "JobStatus"),
        state=r"^(\d)",
        phases={"2": Phase.RUNS, "3": Phase.OVER, "4": Phase.OVER, "5": Phase.HELD},
        cancel=("condor_rm",),
        mpi=False,
    ),
}
"""By what is typed behind ``--engines``."""
