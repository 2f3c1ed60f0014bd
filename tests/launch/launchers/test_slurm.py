"""A job of Slurm, whose commands are scripts here; tests/nodes/inside_slurm.py has the real ones."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from nbcomm.errors import StartError
from nbcomm.launch.launchers import scheduler_cli, slurm
from nbcomm.launch.launchers.slurm import Job, JobState, Request
from nbcomm.world_info import JobInfo

Stub = Callable[[str, str], Path]


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stub:
    """Make a command of Slurm from a shell script."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(slurm, "_SOON", 0.0)
    monkeypatch.setattr(slurm, "_LATER", 0.0)

    def make(name: str, script: str) -> Path:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    return make


def job() -> Job:
    return Job(JobInfo("12", ours=True))


def test_the_script_asks_for_what_is_wanted_and_nothing_else() -> None:
    said = [line for line in Request(2, 8).script().splitlines() if line.startswith("#SBATCH")]
    assert said == [
        "#SBATCH --job-name=nbcomm",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=8",
        "#SBATCH --output=/dev/null",
        "#SBATCH --no-requeue",
        "#SBATCH --no-kill",
    ]


def test_a_line_of_the_users_replaces_ours() -> None:
    script = Request(2, 8, lines=("#SBATCH --output=job.log", "--nodes 3", "--exclusive")).script()
    assert "--output=/dev/null" not in script
    assert "--nodes=2" not in script
    assert script.count("#SBATCH") == 4 + 3
    assert "#SBATCH --output=job.log\n#SBATCH --nodes 3\n#SBATCH --exclusive\n" in script


@pytest.mark.parametrize("steps", ["12.batch", "12.batch\\n12.extern", ""])
def test_the_script_ends_when_nothing_runs_in_the_job(
    stub: Stub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, steps: str
) -> None:
    monkeypatch.setattr(slurm, "UNUSED", 2)
    stub("sleep", f"echo . >> {tmp_path}/slept")
    # A step that ends only after three looks, and a controller that does not answer in between.
    stub(
        "squeue",
        f"n=$(wc -l < {tmp_path}/slept); [ $n = 2 ] && exit 1; [ $n -le 3 ] && printf '12.0\\n'; printf '{steps}\\n'",
    )
    subprocess.run(["bash"], input=Request(1, 1).script(), text=True, check=True, timeout=60)
    assert (tmp_path / "slept").read_text().count(".") == 3 + 1, "it slept three times, and then two seconds"


def test_a_state_is_read() -> None:
    assert JobState.read("RUNNING|None|10|70|a,b\n") == JobState("RUNNING", "", 10.0, 70.0, "a,b")
    assert JobState.read("PENDING|Priority|N/A|N/A|") == JobState("PENDING", "Priority")
    assert JobState.read("") == JobState("")


def test_who_waits_hears_state_reason_place_and_time(stub: Stub, tmp_path: Path) -> None:
    stub(
        "squeue",
        f"""case "$*" in
          *pending*) printf '9\\n12\\n' ;;
          *) n=$(cat {tmp_path}/n 2>/dev/null || echo 0); echo $((n + 1)) > {tmp_path}/n
             case $n in
               0) echo 'PENDING|Priority|1700000000|N/A|' ;;
               1) echo 'CONFIGURING|None|N/A|N/A|a,b' ;;
               *) echo "RUNNING|None|1|2|n[1-2]" ;;
             esac ;;
        esac""",
    )
    stub("scontrol", 'echo "$*" | grep -q "show hostnames n\\[1-2\\]" && printf "n1\\nn2\\n"')
    heard: list[str] = []
    one = job()
    assert one.await_nodes(heard.append) == ["n1", "n2"]
    assert heard[0].startswith("Slurm job 12 waits in the queue (Priority) at place 2 and is expected to start on ")
    assert heard[1:] == ["Slurm job 12 is CONFIGURING"]
    assert one.ends == 2.0


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("echo 'CANCELLED|None|N/A|N/A|'", "Slurm job 12 was cancelled"),
        ("echo 'PREEMPTED|None|1|2|'", "Slurm job 12 was preempted by another job"),
        ("echo 'BOOT_FAIL|None|1|2|'", "Slurm job 12 has failed because a node did not boot"),
        ("echo 'TIMEOUT|TimeLimit|1|2|'", "Slurm job 12 has reached its time limit"),
        ("echo 'FAILED|NonZeroExitCode|1|2|'", r"Slurm job 12 has failed \(NonZeroExitCode\)"),
        ("echo 'REVOKED|None|1|2|'", "Slurm job 12 is REVOKED"),
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", "Slurm job 12 has ended"),
        ("exit 0", "Slurm job 12 has ended"),
    ],
)
def test_a_job_that_is_over_is_said_to_be(stub: Stub, said: str, words: str) -> None:
    stub("squeue", said)
    with pytest.raises(StartError, match=f"^{words} before it had its nodes"):
        job().await_nodes(lambda _: None)


def test_what_can_be_done_when_it_is_over_is_said() -> None:
    ours, around = job(), Job(JobInfo("13", ours=False))
    assert ours.without_heal("a") == around.without_heal("a") == ""
    ours.over = around.over = "it was cancelled"
    assert ours.without_heal("a").endswith("Type %distributed restart to queue again.")
    assert "Start this notebook in another job" in around.without_heal("a"), "another start would use the same job"
    holding = job()
    holding.lost.add("b")
    assert "Slurm job 12 has lost b" in holding.without_heal("b")
    assert not holding.without_heal("a")


def test_the_job_around_that_is_over_is_not_told_as_one_that_was_never_there(stub: Stub) -> None:
    stub("squeue", "echo 'TIMEOUT|TimeLimit|1|2|'")
    with pytest.raises(StartError, match=r"^Slurm job 13 has reached its time limit; start this notebook in another"):
        Job(JobInfo("13", ours=False)).await_nodes(lambda _: None)


def test_a_controller_that_does_not_answer_says_nothing_of_the_job(stub: Stub) -> None:
    stub("squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")
    one = job()
    with pytest.raises(StartError, match="Unable to contact slurm controller"):
        one.look()
    assert not one.over


def test_slurm_that_is_not_there_or_hangs_is_said(stub: Stub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stub("squeue", "exec sleep 60")
    monkeypatch.setattr(scheduler_cli, "TIMEOUT", 0.2)
    with pytest.raises(StartError, match=r"Slurm has not answered within 0\.2 s: squeue "):
        job().look()
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    with pytest.raises(StartError, match=r"sbatch could not be run .* start the notebook where Slurm's commands are"):
        Job.submit(Request(1, 1))


def test_only_a_job_of_ours_is_ended(stub: Stub, tmp_path: Path) -> None:
    stub("scancel", f'echo "$*" >> {tmp_path}/cancelled')
    job().cancel()
    Job(JobInfo("13", ours=False)).cancel()
    over = job()
    over.over = "it is"
    over.cancel()
    assert (tmp_path / "cancelled").read_text() == "12\n"


def test_the_job_around_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert Job.around() is None
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    around = Job.around()
    assert around is not None
    assert around.info == JobInfo("77", ours=False)


def test_a_program_on_a_node_is_a_step_that_shares_it() -> None:
    command = job().launcher("a", "py").command("nbcomm.node")
    assert command[:3] == ["srun", "--jobid=12", "--overlap"]
    assert command[-4:] == ["--nodelist=a", "py", "-m", "nbcomm.node"]
