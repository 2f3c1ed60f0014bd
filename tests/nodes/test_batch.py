"""A world whose two nodes a job of PBS starts. PBS and mpiexec are scripts, and all is on this machine."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from ..node.served import await_that
from ..world.notebook import Notebook

pytestmark = pytest.mark.story

WORKS = "%%distributed\nall_reduce(rank)"
START = "%distributed start --engines pbs -n 4 --nodes 2 --address 127.0.0.1"

QSUB = """
n=$(($(cat last 2>/dev/null || echo 0) + 1))
echo $n > last
cp "$1" $n.script
[ -e hold ] || setsid sh -c "echo \\$\\$ > $n.pid; bash $n.script; touch $n.over" </dev/null >/dev/null 2>&1 &
echo $n.here
"""

QSTAT = """
n=${1%.here}
state=Q
[ ! -e $n.pid ] || state=R
[ ! -e $n.over ] || { echo "qstat: Unknown Job Id $1" >&2; exit 153; }
echo "$1  nbcomm  me  00:00:00 $state short"
"""

QDEL = """
n=${1%.here}
if [ -e $n.pid ]; then
  group=$(cat $n.pid)
  kill -TERM -$group
  for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 -$group 2>/dev/null || break; sleep 0.3; done
  kill -KILL -$group 2>/dev/null
fi
echo cancelled > $n.over
"""

MPIEXEC = """
[ "$1" != --version ] || { echo 'mpiexec (Open MPI) 4.1.4'; exit; }
while :; do
  case $1 in
    -n) n=$2; shift 2 ;;
    --map-by | --bind-to) shift 2 ;;
    --allow-run-as-root) shift ;;
    *) break ;;
  esac
done
programs= number=0 status=0
while [ $number -lt $n ]; do
  OMPI_COMM_WORLD_RANK=$number "$@" </dev/null &
  programs="$programs $!" number=$((number + 1))
done
for program in $programs; do wait $program || status=$?; done
exit $status
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of what stands for PBS; it ends what it has started."""
    folder = tmp_path_factory.mktemp("pbs")
    for name, script in {"qsub": QSUB, "qstat": QSTAT, "qdel": QDEL, "mpiexec": MPIEXEC}.items():
        path = folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        moves = "" if name == "mpiexec" else f"cd {shlex.quote(str(folder))}"
        path.write_text(f"#!/bin/sh\n{moves}\n{script}")
        path.chmod(0o755)
    yield folder
    for file in folder.glob("*.pid"):
        if not file.with_suffix(".over").exists():
            with suppress(ProcessLookupError):
                os.killpg(int(file.read_text()), signal.SIGKILL)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of the notebook and of the job's nodes."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def job(server: Path, home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A notebook with two ranks on each of the job's two nodes."""
    path = f"{server}/bin{os.pathsep}{os.environ['PATH']}"
    notebook = Notebook(str(tmp_path_factory.mktemp("job")), PATH=path, HOME=str(home))
    try:
        notebook.run("%load_ext nbcomm")
        notebook.run(START, 120)
        notebook.run("%%distributed\nkept = [rank]")
        yield notebook
    finally:
        notebook.close()


def files(home: Path) -> list[str]:
    """What the worlds have in their user's home."""
    return sorted(path.name for path in (home / ".nbcomm").rglob("*") if path.is_file())


def test_the_ranks_are_on_the_jobs_nodes_and_the_tokens_are_gone(job: Notebook, home: Path) -> None:
    code = "import os\nprint(node_rank, local_rank, os.environ['LOCAL_WORLD_SIZE'])"
    assert job.run(f"%%distributed\n{code}").lines == ["[0] 0 0 2", "[1] 0 1 2", "[2] 1 0 2", "[3] 1 1 2"]
    assert job.run(WORKS).text == "[0-3] 6\n"
    assert files(home) == ["log", "script"]


def test_a_dead_rank_is_replaced(job: Notebook) -> None:
    dies = "%%distributed\nimport os\nif rank == 3: os.kill(os.getpid(), 9)\nbarrier()"
    assert "Rank 3 was killed by SIGKILL" in job.run(dies, fails=True).error_text
    assert "Rank 3" in job.run("%distributed heal").text
    job.run("%%distributed -r 3\nkept = [3]")
    assert job.run("%%distributed\nall_reduce(rank), kept == [rank]").text == "[0-3] (6, True)\n"


def test_an_interrupt_in_the_queue_cancels_the_job(job: Notebook, server: Path, home: Path) -> None:
    (server / "hold").touch()
    try:
        waits = f"{START} --world other"
        cell = job.submit(waits)
        job.until(lambda: "Starting: PBS job 2 waits in the queue" in cell.text, 60, "it does not wait", cell)
        assert "2" in (server / "last").read_text()
        job.interrupt()
        job.finish(cell)
    finally:
        (server / "hold").unlink()
    assert cell.error is not None
    assert cell.error["ename"] == "KeyboardInterrupt"
    assert (server / "2.over").read_text() == "cancelled\n"
    assert files(home) == ["log", "script"], "those of the first world"
    assert job.run(WORKS).text == "[0-3] 6\n"


def test_a_start_that_fails_says_what_the_job_says(job: Notebook, home: Path) -> None:
    error = job.run(f"{START} --world other --python /nowhere/python", fails=True).error_text
    assert "/nowhere/python" in error
    error = job.run(f"{START} --world other --prologue 'echo hm; exit 3'", fails=True).error_text
    assert re.search(
        r"PBS job \d+ ended with exit code 3 .* the prologue has failed with exit code 3 on .*: hm", error.flat
    )
    assert files(home) == ["log", "script"]
    assert "#PBS -l select=2:ncpus=2:mpiprocs=1\n" in job.run(f"{START} --dry-run").text


def test_a_job_that_is_cancelled_ends_its_ranks_and_a_restart_submits_another(job: Notebook, server: Path) -> None:
    cell = job.submit("%%distributed\nimport time\nprint('on')\ntime.sleep(600)")
    job.until(lambda: "[0-3] on" in cell.text, 60, "it does not begin", cell)
    subprocess.run([server / "bin" / "qdel", "1.here"], check=True)
    assert re.search(r"\b(was|were) lost with node ", job.finish(cell, 90).error_text)
    assert "which was told to end" in cell.error_text
    assert "type %distributed restart to start all of them again" in cell.error_text
    assert "heal" not in cell.error_text
    error = job.run("%distributed heal", fails=True).error_text
    assert "Nothing was replaced: node 0 " in error
    assert "The programs of all nodes were started together" in error
    job.run("%distributed restart", 120)
    assert (server / "last").read_text() == "5\n"
    job.run("%%distributed\nkept = [rank]")
    assert job.run(WORKS).text == "[0-3] 6\n"


def test_the_next_kernel_attaches(job: Notebook) -> None:
    os.kill(job.pid, signal.SIGKILL)
    job.begin_again()
    job.run("%load_ext nbcomm")
    job.run("%distributed attach", 120)
    assert job.run("%%distributed\nall_reduce(rank), kept == [rank]").text == "[0-3] (6, True)\n"


def test_nothing_is_left_and_the_job_is_over(job: Notebook, server: Path, home: Path) -> None:
    """The last test: it ends the world, which another kernel has started."""
    pids = [int(pid) for pid in job.run("%%distributed --by-rank\nimport os\nprint(os.getpid())").text.split()[1::2]]
    assert len(pids) == 4
    job.run("%distributed stop")
    await_that((server / "5.over").exists, "the job lives on")
    assert (server / "5.over").read_text() == "", "it has ended by itself"
    for pid in pids:
        await_that(lambda pid=pid: not psutil.pid_exists(pid), "a rank lives on")
    assert list((home / ".nbcomm").iterdir()) == []


def test_a_kernel_that_stops_what_it_has_started_leaves_nothing(job: Notebook, server: Path, home: Path) -> None:
    job.run(START, 120)
    job.run("%distributed stop")
    await_that((server / "6.over").exists, "the job lives on")
    assert (server / "6.over").read_text() == "", "it has ended by itself"
    assert list((home / ".nbcomm").iterdir()) == []
