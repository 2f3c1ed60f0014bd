"""A world in a job of a real Slurm, on two fake hosts: run by test_slurm.py, inside what enter.sh has made."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..notebooks.playing import played_with
from ..world.notebook import Notebook, opened
from . import next_kernel
from .node_homes import node_homes

pytestmark = [pytest.mark.story, pytest.mark.timeout(240)]

WORKS = "%%distributed\nall_reduce(rank)"
DIES = "%%distributed\nimport os\nif rank == 3: os.kill(os.getpid(), 9)\nbarrier()"
LOOKS = "from nbcomm.notebook.cluster import job_watch\njob_watch.PAUSE = 0.5"
SAVES = "import os; open(os.environ['TMPDIR'] + f'/saved-{rank}', 'w').close()"
START = f'%distributed start --engines slurm -n 4 --nodes 2 --gpus-per-node 2 --time 30 --before-end "{SAVES}"'


def slurm(*command: str) -> str:
    """What a command of Slurm says."""
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout


def steps() -> list[str]:
    """What runs in all jobs, except their scripts."""
    said = slurm("squeue", "--noheader", "--steps", "--format=%i").split()
    return [step for step in said if not step.endswith((".batch", ".extern"))]


def await_status(notebook: Notebook, text: str) -> None:
    """Wait until the table says something."""
    notebook.until(lambda: text in notebook.run("%distributed status").text, 60, f"it does not say: {text}")


def jobs() -> list[str]:
    """The state of each job that is not over, or about to be."""
    said = slurm("squeue", "--noheader", "--format=%i %T").splitlines()
    return [job for job in said if not job.endswith("COMPLETING")]


def await_that(condition: Callable[[], bool], what: str) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A notebook whose ranks are in a job with two nodes."""
    with opened(tmp_path_factory.mktemp("slurm"), LOOKS, START, "%%distributed\nkept = [rank]") as notebook:
        yield notebook


def test_each_rank_is_on_its_node_and_meets_the_others(hosts: Notebook) -> None:
    code = "import os, socket\nprint(socket.gethostname(), node_rank, local_rank, os.environ['GLOO_SOCKET_IFNAME'])"
    assert hosts.run(f"%%distributed\n{code}").lines == [
        "[0] a 0 0 eth0",
        "[1] a 0 1 eth0",
        "[2] b 1 0 eth0",
        "[3] b 1 1 eth0",
    ]
    assert hosts.run(WORKS).text == "[0-3] 6\n"
    assert hosts.run("%%distributed\nos.environ['CUDA_VISIBLE_DEVICES']").text == "[0-3] '0,1'\n", "as Slurm gave them"
    assert re.search(r" · Slurm job 1, [23]\d min left\n", hosts.run("%distributed status").text)
    assert jobs() == ["1 RUNNING"]


@pytest.mark.nightly
def test_what_would_be_done_is_shown_without_doing_it(hosts: Notebook) -> None:
    said = hosts.run(
        "%distributed start --world dry --engines slurm -n 5 --nodes 2 --partition main --gpus-per-node 2 --account me "
        "--line=--constraint=a100 --line '#SBATCH --ntasks-per-node=4' --prologue 'module load python' "
        "--wrapper 'apptainer exec image.sif' --python python3 --dry-run"
    ).text
    directives = [line.removeprefix("#SBATCH ") for line in said.splitlines() if line.startswith("#SBATCH")]
    assert directives == [
        "--job-name=nbcomm",
        "--nodes=2",
        "--gpus-per-node=2",
        "--partition=main",
        "--account=me",
        "--output=/dev/null",
        "--no-requeue",
        "--no-kill",
        "--constraint=a100",
        "--ntasks-per-node=4",
    ]
    assert " --nodelist=NODE bash -lc '" in said
    assert "\nmodule load python\n" in said
    assert said.endswith("\nexec apptainer exec image.sif python3 -m nbcomm.node'\n")
    assert jobs() == ["1 RUNNING"]


def test_what_slurm_refuses_is_said_in_its_words(hosts: Notebook) -> None:
    error = hosts.run(
        "%distributed start --world other --engines slurm -n 2 --partition nowhere", fails=True
    ).error_text
    assert "Slurm refuses it (sbatch --parsable):" in error
    assert "invalid partition specified: nowhere" in error
    error = hosts.run("%distributed start --world other --partition main -n 2", fails=True).error_text
    assert "--partition needs --engines slurm, or pbs" in error
    assert jobs() == ["1 RUNNING"]


def test_the_queue_is_shown_and_can_be_left(hosts: Notebook) -> None:
    blocker = slurm("sbatch", "--parsable", "--nodes=2", "--ntasks-per-node=2", "--output=/dev/null", "--wrap=sleep 99")
    cell = hosts.submit("%distributed start --world other --engines slurm -n 4 --nodes 2")
    hosts.until(lambda: "waits in the queue (Resources) at place 1" in str(cell.outputs), 60, "no queue is shown", cell)
    number = re.search(r"Slurm job (\d+) waits", str(cell.outputs))
    assert number is not None
    assert f"{number[1]} PENDING" in jobs()
    hosts.interrupt()
    hosts.finish(cell)
    assert "the world was not started" in cell.error_text
    assert sorted(jobs()) == ["1 RUNNING", f"{blocker.strip()} RUNNING"]
    slurm("scancel", blocker.strip())
    assert hosts.run(WORKS).text == "[0-3] 6\n"


@pytest.mark.nightly
def test_a_dead_rank_is_replaced_in_the_job(hosts: Notebook) -> None:
    error = hosts.run(DIES, fails=True).error_text
    assert "Rank 3 was killed by SIGKILL" in error
    hosts.run("%distributed heal")
    hosts.run("%%distributed -r 3\nkept = [3]")
    assert hosts.run("%%distributed\nall_reduce(rank), kept == [rank]").text == "[0-3] (6, True)\n"


@pytest.mark.nightly
def test_a_killed_daemon_is_replaced_in_its_step_and_its_ranks_keep_their_variables(hosts: Notebook) -> None:
    hosts.run("%%distributed -r 2\nimport psutil\npsutil.Process().parent().kill()")
    assert hosts.run("%%distributed\nall_reduce(rank), kept == [rank]").text == "[0-3] (6, True)\n"
    assert "Rank 3 has ended" in hosts.run(DIES, fails=True).error_text
    hosts.run("%distributed heal")
    hosts.run("%%distributed -r 3\nkept = [3]")
    assert hosts.run("%%distributed\nall_reduce(rank), kept == [rank]").text == "[0-3] (6, True)\n"


def test_the_next_kernel_attaches_to_the_world_and_to_its_job(hosts: Notebook) -> None:
    next_kernel.attaches(hosts, LOOKS)
    assert jobs() == ["1 RUNNING"]


def test_the_end_of_its_time_is_told_before_and_a_cell_that_saves_is_run(hosts: Notebook) -> None:
    cell = hosts.submit("%%distributed\nimport time\nprint('on')\ntime.sleep(3)")
    hosts.until(lambda: "on" in cell.text, 60, "it does not begin", cell)
    slurm("scontrol", "update", "jobid=1", "TimeLimit=9")
    hosts.finish(cell)
    found = re.search(r"nbcomm: Slurm job 1 ends in (\d+) min; save what you need\.", cell.text)
    assert found is not None, cell.text
    cell = hosts.submit("%%distributed\nprint('on')\ntime.sleep(600)")
    hosts.until(lambda: "on" in cell.text, 60, "it does not begin", cell)
    slurm("scontrol", "update", "jobid=1", f"TimeLimit={9 - int(found[1]) + 1}")
    assert "KeyboardInterrupt" in hosts.finish(cell).error_text
    saved = [Path(f"/run/{host}/saved-{rank}") for host, rank in (("a", 0), ("a", 1), ("b", 2), ("b", 3))]
    await_that(lambda: all(path.exists() for path in saved), "nothing is saved")
    slurm("scontrol", "update", "jobid=1", "TimeLimit=30")
    assert hosts.run(WORKS).text == "[0-3] 6\n"


@pytest.mark.nightly
def test_a_restart_stays_in_the_job(hosts: Notebook) -> None:
    hosts.run("%distributed restart", 120)
    assert hosts.run(WORKS).text == "[0-3] 6\n"
    assert "NameError" in hosts.run("%%distributed\nkept", fails=True).error_text
    assert jobs() == ["1 RUNNING"]


def test_a_job_that_is_cancelled_ends_the_cell_and_is_named(hosts: Notebook) -> None:
    cell = hosts.submit("%%distributed\nimport time\nprint('on')\nif rank: time.sleep(60)\nbarrier()")
    hosts.until(lambda: "on" in cell.text, 60, "it does not begin", cell)
    slurm("scancel", "1")
    hosts.finish(cell)
    advice = "Type %distributed restart to queue again."
    assert f"Slurm job 1 was cancelled, and the ranks have ended with it. {advice}" in cell.text
    assert advice in cell.error_text
    assert "heal" not in cell.error_text
    assert "Slurm job 1 was cancelled" in hosts.run("%distributed status").text
    error = hosts.run("%distributed heal", fails=True).error_text
    assert "Nothing was replaced: node 0 (a) and node 1 (b) were taken back: Slurm job 1 was cancelled." in error
    assert advice in error
    hosts.run("%distributed restart", 150)
    assert hosts.run(WORKS).text == "[0-3] 6\n"
    assert len(jobs()) == 1


def test_a_world_that_rests_gives_its_nodes_back(hosts: Notebook) -> None:
    hosts.run("%distributed stop")
    assert jobs() == []
    hosts.run("%distributed start --engines slurm -n 2 --nodes 2 --idle 6s --timeout 120", 150)
    assert hosts.run(WORKS).text == "[0-1] 1\n"
    await_that(lambda: jobs() == [], "the job is kept")
    await_status(hosts, "was given back after 6 s without a cell")
    hosts.run("%distributed stop")


@pytest.mark.nightly
def test_the_first_notebook_runs_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = played_with('engines = "slurm"\nnodes = 2', tmp_path, monkeypatch, capsys)
    assert re.search(r"^3 +1 +1 \(b\) ", page, re.MULTILINE)
    assert " · Slurm job " in page
    assert jobs() == []


def test_a_node_that_the_job_loses_costs_only_its_ranks(hosts: Notebook) -> None:
    hosts.run("%distributed start --engines slurm -n 4 --nodes 2 --grace 3 --timeout 120", 150)
    (job,) = jobs()
    hosts.run("%%distributed\nkept = rank")
    cell = hosts.submit("%%distributed\nimport time\nif rank == 3: time.sleep(600)\nbarrier()")
    hosts.until(lambda: "waiting for rank 3" in cell.text, 60, "the cell did not begin", cell)
    subprocess.run(["ip", "link", "set", "vb", "down"], check=True, timeout=10)
    try:
        error = hosts.finish(cell, 120).error_text
        assert "Ranks 2-3 were lost with node 1 (b), which does not answer" in error
        await_that(lambda: "down" in slurm("sinfo", "--noheader", "--nodes=b", "--format=%T"), "Slurm misses nothing")
        await_status(hosts, f"Slurm job {job.split()[0]} has lost b, so that heal cannot replace the ranks there.")
        assert hosts.run("%%distributed -r 0,1\nkept").lines == ["[0] 0", "[1] 1"]
        error = hosts.run("%distributed heal", 120, fails=True).error_text
        assert "Nothing was replaced: node 1 (b) does not answer. Slurm job" in error
        assert "Type %distributed restart to use the nodes that it still has." in error
        assert hosts.run("%%distributed -r 0,1\nkept").lines == ["[0] 0", "[1] 1"]
    finally:
        subprocess.run(["ip", "link", "set", "vb", "up"], check=True, timeout=10)
    hosts.run("%distributed restart", 150)
    assert hosts.run("%%distributed\nall_reduce(rank), node_rank").text == "[0-3] (6, 0)\n"
    assert jobs() == [job]
    hosts.run("%distributed stop")
    await_that(lambda: slurm("sinfo", "--noheader", "--partition=main", "--format=%D %T") == "2 idle\n", "b stays away")


def test_a_notebook_in_a_job_uses_its_nodes_and_leaves_it(hosts: Notebook) -> None:
    slurm("salloc", "--no-shell", "--nodes=2", "--ntasks-per-node=2")
    (number,) = [line.split()[0] for line in jobs()]
    hosts.run(f"import os\nos.environ |= {{'SLURM_JOB_ID': '{number}', 'SLURM_TASKS_PER_NODE': '2(x2)'}}")
    hosts.run("%distributed start --engines slurm --timeout 120", 150)
    assert hosts.run("%%distributed\nall_reduce(node_rank)").text == "[0-3] 2\n"
    hosts.run("%distributed stop")
    assert jobs() == [f"{number} RUNNING"]
    assert steps() == []
    slurm("scancel", number)


def test_a_job_whose_kernel_has_died_ends_by_itself(hosts: Notebook) -> None:
    hosts.run("import os\nos.environ.pop('SLURM_JOB_ID', None)")
    hosts.run("from nbcomm.launch.launchers import slurm\nslurm.UNUSED = 4")
    hosts.run("%distributed start --engines slurm -n 2 --nodes 2 --grace 1 --timeout 120", 150)
    assert len(jobs()) == 1
    assert len(steps()) == 2
    os.kill(hosts.pid, signal.SIGKILL)
    await_that(lambda: steps() == [], "a node's program stays")
    await_that(lambda: jobs() == [], "the job is kept")
    hosts.begin_again()


def test_nothing_is_left_on_any_host() -> None:
    """The last test."""
    assert node_homes() == set()
