"""Jobs of PBS, SGE, LSF and HTCondor, whose commands are scripts here; tests/nodes/test_batch.py starts a world."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nbcomm.errors import StartError
from nbcomm.launch.launchers import batch
from nbcomm.launch.launchers.batch import Batch, BatchProgram
from nbcomm.launch.launchers.joined import JoinedNode
from nbcomm.launch.launchers.schedulers import SCHEDULERS, Phase
from nbcomm.launch.launchers.shared_launcher import forget
from nbcomm.launch.launchers.slurm import Request
from nbcomm.node.join_token import JoinToken, read
from nbcomm.world_info import Launcher, LinkInfo

from ...node.served import await_that

TOKENS = [JoinToken("w", LinkInfo("tcp://127.0.0.1:1", "s", "p", f"secret{n}", f"node{n}"), 30.0) for n in (1, 2)]
FULL = Request(2, 8, 4, "short", "120", "me")
NAMES = [*SCHEDULERS]
Stub = Callable[[str, str], Path]

TAKES = {
    "pbs": ("qsub", "echo 'Welcome!'; echo 12.server"),
    "sge": ("qsub", "echo 12"),
    "lsf": ("bsub", "echo 'Job <12> is submitted to queue <short>.'"),
    "htcondor": ("condor_submit", "echo '12.0 - 12.0'"),
}
"""What takes a job, and says that it does."""

LOOKS = {"pbs": "qstat", "sge": "qstat", "lsf": "bjobs", "htcondor": "condor_q"}
CANCELS = {"pbs": "qdel", "sge": "qdel", "lsf": "bkill", "htcondor": "condor_rm"}

_TABLE = "Job id  Name  User  Time Use S Queue\\n------ ---- ---- ---- - ----\\n"
SAYS = {
    "pbs": {
        Phase.WAITS: f"printf '{_TABLE}12.server  nbcomm  me  0 Q short\\n'",
        Phase.HELD: f"printf '{_TABLE}12.server  nbcomm  me  0 H short\\n'",
        Phase.RUNS: f"printf '{_TABLE}12.server  nbcomm  me  00:00:01 R short\\n'",
        Phase.OVER: "echo 'qstat: Unknown Job Id 12.server' >&2; exit 153",
    },
    "sge": {
        Phase.WAITS: "printf 'job_number:  12\\njob_state   1:    qw\\n'",
        Phase.HELD: "printf 'job_number:  12\\njob_state   1:    hqw\\n'",
        Phase.RUNS: "printf 'job_number:  12\\nusage       1:    cpu=00:00:01\\n'",
        Phase.OVER: "printf 'Following jobs do not exist:\\n12\\n' >&2; exit 1",
    },
    "lsf": {
        Phase.WAITS: "echo PEND",
        Phase.HELD: "echo PSUSP",
        Phase.RUNS: "echo RUN",
        Phase.OVER: "echo 'Job <12> is not found' >&2; exit 255",
    },
    "htcondor": {
        Phase.WAITS: "echo 1",
        Phase.HELD: "echo 5",
        Phase.RUNS: "echo 2",
        Phase.OVER: "exit 0",
    },
}
"""What the command says that tells of a job."""

HEADS = {
    "pbs": """\
#PBS -N nbcomm
#PBS -S /bin/bash
#PBS -j oe
#PBS -o /dev/null
#PBS -r n
#PBS -l select=2:ncpus=8:mpiprocs=1:ngpus=4
#PBS -l place=scatter
#PBS -q short
#PBS -l walltime=120
#PBS -A me
""",
    "sge": """\
#$ -N nbcomm
#$ -S /bin/bash
#$ -j y
#$ -o /dev/null
#$ -r n
#$ -pe mpi 16
#$ -l gpu=4
#$ -q short
#$ -l h_rt=120
#$ -A me
""",
    "lsf": """\
#BSUB -J nbcomm
#BSUB -o /dev/null
#BSUB -n 16
#BSUB -R "span[ptile=8]"
#BSUB -gpu "num=4"
#BSUB -q short
#BSUB -W 120
#BSUB -P me
""",
    "htcondor": "",
}

BODY = """\
# Starts nbcomm's program on each node. What it says is in the file that the next line names.
exec >{log} 2>&1
{command}
status=$?
echo "nbcomm: the programs have ended with exit code $status"
exit $status
"""

DESCRIPTION = """\
executable = /bin/bash
transfer_executable = false
arguments = "'/home/me/w/script'"
initialdir = /home/me/w
universe = parallel
batch_name = nbcomm
environment = "NBCOMM_NUMBER=$(Node)"
should_transfer_files = if_needed
output = /dev/null
error = /dev/null
+ParallelShutdownPolicy = "WAIT_FOR_ALL"
machine_count = 2
request_cpus = 8
request_gpus = 4
allowed_job_duration = 120
accounting_group = me
queue
"""


@pytest.fixture(autouse=True)
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stub:
    """Make a command of a scheduler from a shell script; mpiexec is Open MPI's."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    for name in ("_SOON", "_LATER", "_TICK", "_LATE"):
        monkeypatch.setattr(batch, name, 0.02)

    def make(name: str, script: str) -> Path:
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    make("mpiexec", "echo 'mpiexec (OpenRTE) 4.1.4'")
    return make


@pytest.fixture
def submitted(stub: Stub, tmp_path: Path) -> Iterator[Callable[[str, Phase], BatchProgram]]:
    """Submit a job to a scheduler that says at first that it is in this phase; `say` changes that."""
    made: list[BatchProgram] = []

    def make(name: str, phase: Phase) -> BatchProgram:
        stub(TAKES[name][0], f'cat > {tmp_path}/read; echo "$@" > {tmp_path}/words; {TAKES[name][1]}')
        over = (
            f"cp {tmp_path}/over {tmp_path}/next; mv {tmp_path}/next {tmp_path}/bin/{LOOKS[name]}"  # it may be running
        )
        stub(CANCELS[name], f'echo "$@" > {tmp_path}/cancelled; {over}')
        stub("over", f'echo "$@" > {tmp_path}/asked; {SAYS[name][Phase.OVER]}').rename(tmp_path / "over")
        say(stub, name, phase)
        made.append(Batch(SCHEDULERS[name], Request(2, 2), Launcher("py")).begin(TOKENS))
        assert made[-1].start_once()
        return made[-1]

    yield make
    for one in made:
        one.close()


def say(stub: Stub, name: str, phase: Phase) -> None:
    """Let the scheduler say from now on that the job is in this phase."""
    new = stub("new", f'echo "$@" >> "$HOME/../asked"; {SAYS[name][phase]}')
    new.rename(new.with_name(LOOKS[name]))


def write(program: BatchProgram, status: int, place: int = 0) -> None:
    """Write what the script writes at its end."""
    with program._logs[place].open("a") as log:
        log.write(f"a word\nnbcomm: the programs have ended with exit code {status}\n")


@pytest.mark.parametrize("name", NAMES)
def test_the_script_asks_for_what_is_wanted(name: str) -> None:
    files = Batch(SCHEDULERS[name], FULL, Launcher("py")).files(Path("/home/me/w"))
    program = "py -m nbcomm.node /home/me/w"
    if name == "htcondor":
        command, log = program, "/home/me/w/log.$NBCOMM_NUMBER"
    else:
        command, log = f"mpiexec -n 2 --map-by ppr:1:node --bind-to none {program}", "/home/me/w/log"
    assert files.pop("script") == "#!/bin/bash\n" + HEADS[name] + BODY.format(log=log, command=command)
    assert files == ({"description": DESCRIPTION} if name == "htcondor" else {})


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_asked_for_that_nobody_wants(name: str) -> None:
    text = "\n".join(Batch(SCHEDULERS[name], Request(1, 2), Launcher("py")).files(Path("/w")).values())
    for word in ("gpu", "time", "-q ", "-A ", "-W ", "accounting", "duration", "None"):
        assert word not in text


@pytest.mark.parametrize(
    ("name", "lines", "gone", "there"),
    [
        ("pbs", ("-l nodes=2:ppn=8",), ("select=", "place="), ("#PBS -l nodes=2:ppn=8\n", "#PBS -l walltime=")),
        ("pbs", ("#PBS -l walltime=1", "-m n"), ("walltime=120",), ("#PBS -l walltime=1\n#PBS -m n\n", "select=")),
        ("sge", ("-pe orte 32", "-l exclusive"), ("-pe mpi",), ("#$ -pe orte 32\n#$ -l exclusive\n", "h_rt=")),
        ("lsf", ('-R "select[mem>9]"',), (), ('-R "span[ptile=8]"', '#BSUB -R "select[mem>9]"\n')),
        ("lsf", ('-R "span[hosts=1]"', "-W 5"), ("ptile", "-W 120"), ('#BSUB -R "span[hosts=1]"\n#BSUB -W 5\n',)),
        ("htcondor", ("Request_CPUs=1", "+Mine = 2"), ("request_cpus = 8",), ("Request_CPUs=1\n+Mine = 2\nqueue\n",)),
    ],
)
def test_a_line_of_the_users_replaces_ours(
    name: str, lines: tuple[str, ...], gone: tuple[str, ...], there: tuple[str, ...]
) -> None:
    asked = Request(2, 8, 4, "short", "120", "me", lines)
    text = "\n".join(Batch(SCHEDULERS[name], asked, Launcher("py")).files(Path("/w")).values())
    assert not [word for word in gone if word in text]
    assert not [word for word in there if word not in text]


def test_mpiexec_is_the_one_behind_the_prologue_or_open_mpis(stub: Stub, tmp_path: Path) -> None:
    def command(prologue: str = "") -> str:
        files = Batch(SCHEDULERS["pbs"], Request(2, 8), Launcher("py", prologue=prologue)).files(Path("/w"))
        return files["script"].split("2>&1\n")[1]

    other = stub("mpiexec", "echo 'HYDRA build details:'")
    assert command().startswith("mpiexec -n 2 -ppn 1 py ")
    (tmp_path / "hydra").mkdir()
    other.rename(tmp_path / "hydra" / "mpiexec")
    shown = command(f"PATH={tmp_path}/hydra:$PATH")
    assert shown.startswith("bash -lc '")
    assert f"\nPATH={tmp_path}/hydra:$PATH\n" in shown
    assert "\nexec mpiexec -n 2 -ppn 1 bash -lc " in shown
    stub("mpiexec", "echo 'command not found' >&2; exit 127")
    assert "\nexec mpiexec -n 2 --map-by ppr:1:node --bind-to none bash" in command("true")


@pytest.mark.parametrize("name", NAMES)
def test_a_job_is_followed_from_the_queue_to_its_end(
    submitted: Callable[[str, Phase], BatchProgram], stub: Stub, tmp_path: Path, name: str
) -> None:
    one, title = submitted(name, Phase.WAITS), SCHEDULERS[name].name
    assert not one.start_once(), "it is submitted once"
    folder = tmp_path / "home" / ".nbcomm" / "w"
    if name == "lsf":
        assert (tmp_path / "read").read_text() == (folder / "script").read_text()
    else:
        file = folder / ("description" if name == "htcondor" else "script")
        assert (tmp_path / "words").read_text().split()[-1] == str(file)
    assert one.waiting == f"{title} job 12 waits in the queue"
    say(stub, name, Phase.HELD)
    await_that(lambda: one.waiting == f"{title} job 12 is held in the queue", "it is not held")
    say(stub, name, Phase.RUNS)
    await_that(lambda: not one.waiting, "it does not run")
    assert one.status is None
    number = "12.server" if name == "pbs" else "12"
    assert number in (tmp_path / "asked").read_text().split()
    for place in range(len(one._logs)):
        write(one, 0, place)
    await_that(lambda: one.status == 0, "it does not end")
    assert one.how == "ended with exit code 0"
    assert one.last_words().startswith("a word")
    assert SCHEDULERS[name].name not in one.last_words()


@pytest.mark.parametrize("name", NAMES)
def test_a_job_that_is_over_without_a_word_has_failed(
    submitted: Callable[[str, Phase], BatchProgram], stub: Stub, name: str
) -> None:
    one = submitted(name, Phase.OVER)
    time.sleep(0.2)
    assert one.status is None, "the scheduler may not know it yet"
    say(stub, name, Phase.RUNS)
    await_that(lambda: not one.waiting, "it does not run")
    say(stub, name, Phase.OVER)
    await_that(lambda: one.status == 1, "it does not end")
    assert one.how == "is over, and its script wrote no exit code: the job was cancelled, or its time was over"
    assert "has written nothing to" in one.last_words()
    assert "Do its nodes have the same home as this machine?" in one.last_words()


@pytest.mark.parametrize("name", NAMES)
def test_a_job_that_is_not_cancelled_at_once_is_cancelled_at_the_next_try(
    submitted: Callable[[str, Phase], BatchProgram], stub: Stub, tmp_path: Path, name: str
) -> None:
    one = submitted(name, Phase.WAITS)
    works = tmp_path / "bin" / CANCELS[name]
    works.rename(tmp_path / "works")
    stub(CANCELS[name], f'echo busy >&2; mv {tmp_path}/works "$0"; exit 1')
    one.kill()
    assert (one.status, one.how) == (0, "was cancelled")


@pytest.mark.parametrize("name", NAMES)
def test_a_job_is_cancelled_and_then_nothing_is_left(
    submitted: Callable[[str, Phase], BatchProgram], tmp_path: Path, name: str
) -> None:
    one = submitted(name, Phase.WAITS)
    one.kill()
    number = "12.server" if name == "pbs" else "12"
    assert (tmp_path / "cancelled").read_text() == f"{number}\n"
    assert one.status == 0
    assert one.how == "was cancelled"
    (tmp_path / "cancelled").unlink()
    one.kill()
    assert not (tmp_path / "cancelled").exists(), "once is enough"


def test_a_program_that_fails_is_that_of_all(submitted: Callable[[str, Phase], BatchProgram]) -> None:
    one = submitted("htcondor", Phase.RUNS)
    write(one, 0, 0)
    time.sleep(0.2)
    assert one.status is None
    write(one, 3, 1)
    await_that(lambda: one.status == 3, "it does not end")
    assert one.how == "ended with exit code 3"


def test_a_scheduler_that_does_not_answer_says_nothing_of_the_job(
    submitted: Callable[[str, Phase], BatchProgram], stub: Stub
) -> None:
    one = submitted("pbs", Phase.RUNS)
    await_that(lambda: not one.waiting, "it does not run")
    stub("qstat", "echo 'cannot connect to server' >&2; exit 1")
    time.sleep(0.2)
    assert one.status is None


def test_a_job_that_is_refused_has_ended(stub: Stub) -> None:
    stub("qsub", "echo 'qsub: Unknown queue' >&2; exit 1")
    program = Batch(SCHEDULERS["pbs"], Request(2, 2), Launcher("py")).begin(TOKENS)
    with pytest.raises(StartError, match=r"PBS refuses it \(qsub .*\):\nqsub: Unknown queue"):
        program.start_once()
    assert program.is_begun
    assert program.status == 1
    program.kill()
    stub("qsub", "echo 'Welcome!'")
    forget("w")
    with pytest.raises(StartError, match="qsub printed no job number"):
        Batch(SCHEDULERS["pbs"], Request(2, 2), Launcher("py")).begin(TOKENS).start()


def test_without_the_schedulers_commands_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Batch(SCHEDULERS["lsf"], Request(2, 2), Launcher("py")).begin(TOKENS)
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    with pytest.raises(StartError, match=r"bsub could not be run .* start the notebook where LSF's commands are"):
        program.start_once()


def test_tokens_and_script_are_the_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Batch(SCHEDULERS["htcondor"], Request(2, 2), Launcher("py"))
    one.begin(TOKENS)
    folder = tmp_path / "home" / ".nbcomm" / "w"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == dict.fromkeys(
        ("0", "1", "script", "description"), 0o600
    )
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("NBCOMM_NUMBER", "1")
    assert read(str(folder)) == TOKENS[1], "HTCondor may run in a job of another scheduler"
    one.end()
    assert {path.name for path in folder.iterdir()} == {"script", "description"}


def test_who_waits_hears_of_the_queue_until_a_node_speaks(submitted: Callable[[str, Phase], BatchProgram]) -> None:
    one = Batch(SCHEDULERS["sge"], Request(2, 2), Launcher("py"))
    one._program = submitted("sge", Phase.WAITS)
    heard: list[str] = []
    assert one.await_run(heard.append, lambda: len(heard) == 3)
    assert heard == ["SGE job 12 waits in the queue"] * 3


def test_an_interrupt_in_the_queue_takes_the_job_out_of_it(
    submitted: Callable[[str, Phase], BatchProgram], tmp_path: Path
) -> None:
    """What `Nodes.shutdown` does with a node that has not joined: kill, then fence."""
    program = submitted("lsf", Phase.WAITS)
    launchers = Batch(SCHEDULERS["lsf"], Request(2, 2), Launcher("py")).launchers()
    nodes = [JoinedNode(token, launcher, shared=program) for token, launcher in zip(TOKENS, launchers, strict=True)]
    for node in nodes:
        node.start()
        assert not node.has_ended
    for node in nodes:
        node.kill()
        node.fence(1.0)
        assert node.has_cleared
    assert (tmp_path / "cancelled").read_text() == "12\n"
