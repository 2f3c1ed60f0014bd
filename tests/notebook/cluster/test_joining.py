"""Which nodes join, by what the user asks for."""

from __future__ import annotations

from typing import Any

import pytest

from nbcomm.errors import StartError
from nbcomm.launch.launchers import hosts, slurm
from nbcomm.launch.launchers.slurm import Job, Request
from nbcomm.notebook.cluster import joining
from nbcomm.notebook.cluster.start_options import StartOptions
from nbcomm.notebook.session import registry
from nbcomm.world_info import JobInfo


@pytest.fixture(autouse=True)
def no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.delenv("SLURM_TASKS_PER_NODE", raising=False)
    monkeypatch.setattr(hosts, "address_on_the_route", lambda name: f"to {name}")


def slurms(**options: Any) -> StartOptions:
    return StartOptions(engines="slurm", **options)


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        (slurms(n=5, nodes=2), Request(2, 3)),
        (slurms(gpus_per_node=4, nodes=2), Request(2, 4, gpus=4)),
        (slurms(n=2, gpus_per_node=4, partition="p", time="5", account="a"), Request(1, 2, 4, "p", "5", "a")),
    ],
)
def test_a_job_is_asked_for_what_the_ranks_need(options: StartOptions, asked: Request) -> None:
    assert joining.request(options) == asked


def test_without_a_number_of_ranks_nothing_is_asked() -> None:
    with pytest.raises(StartError, match="How many ranks"):
        joining.request(slurms(nodes=2))
    with pytest.raises(StartError, match="2 ranks cannot be shared out over 3 nodes"):
        joining.request(slurms(n=2, nodes=3))


@pytest.mark.parametrize(
    ("options", "ours"),
    [(slurms(), False), (slurms(n=2, idle=60.0), False), (slurms(n=2, partition="p"), True)],
)
def test_the_job_around_is_used_unless_another_one_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, options: StartOptions, ours: bool
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(Job, "submit", lambda _: Job(JobInfo("8", ours=True)))
    assert joining.a_job(options, None).info == JobInfo("8" if ours else "7", ours=ours)


def test_a_kept_job_is_used_as_long_as_it_has_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Job, "submit", lambda _: Job(JobInfo("8", ours=True)))
    kept = Job(JobInfo("7", ours=True))
    for state, number in (("RUNNING", "7"), ("TIMEOUT", "8"), ("COMPLETING", "8")):
        monkeypatch.setattr(Job, "look", lambda _, state=state: slurm.JobState(state))
        assert joining.a_job(slurms(n=1), kept).info.number == number
    monkeypatch.setattr(Job, "look", lambda _: slurm.JobState("RUNNING"))
    kept.over = "Slurm job 7 was given back"  # Slurm has not done it yet
    assert joining.a_job(slurms(n=1), kept).info.number == "8"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (StartOptions(engines="ssh", hosts="a:2,a:2"), "a stands twice"),
        (StartOptions(engines="mpi", hosts="a:2,a:2"), "a stands twice"),
        (StartOptions(engines="ssh", hosts="a,b"), "How many ranks"),
        (StartOptions(engines="ssh", hosts="localhost:1,b:1", tunnel=True), "can have no ranks"),
        (StartOptions(engines="ssh", hosts="a:1", via="kubectl exec --"), "does not name the host"),
        (StartOptions(engines="ssh", hosts="a:1,b:1", address="127.0.0.1"), "a cannot reach this machine"),
        (StartOptions(engines="mpi", hosts="localhost:1,b:1", address="127.0.0.1"), "b cannot reach this machine"),
        (StartOptions(engines="mpi"), "How many ranks"),
        (StartOptions(engines="pbs"), "How many ranks"),
        (slurms(), "How many ranks"),
        (slurms(n=2, nodes=3), "cannot be shared out"),
        (slurms(n=0), "at least 1 rank"),
        (
            StartOptions(n=2, engines="slrum"),
            "The engines 'slrum' are unknown; write --engines local, ssh, mpi, slurm, pbs",
        ),
    ],
)
def test_what_is_wrong_anywhere_is_refused_before_anything_is_started(
    monkeypatch: pytest.MonkeyPatch, options: StartOptions, said: str
) -> None:
    def start(*_: Any) -> None:
        pytest.fail("something is started")

    monkeypatch.setattr(registry, "_prepared", start)
    monkeypatch.setattr(hosts, "_is_this_machine", lambda _: False)
    monkeypatch.setattr(hosts, "_resolved", lambda host: host)
    with pytest.raises(StartError, match=said):
        registry.start(**vars(options))
    with pytest.raises(StartError, match=said):
        joining.in_words(options)


def test_loopback_is_no_fault_where_it_may_lead_there() -> None:
    joining.refuse(StartOptions(engines="ssh", hosts="localhost:2", address="127.0.0.1"))
    joining.refuse(StartOptions(engines="ssh", hosts="pod:2", via="docker exec -i {host}", address="127.0.0.1"))
    joining.refuse(StartOptions(n=2, engines="pbs", address="127.0.0.1"))


@pytest.mark.parametrize(
    ("options", "ours", "counts"),
    [
        (slurms(n=5, nodes=3), True, [0, 2, 2, 1]),
        (slurms(gpus_per_node=4, nodes=3), True, [0, 4, 4, 4]),
        (slurms(), False, [0, 2, 2, 1]),
        (slurms(nodes=2), False, [0, 2, 2]),
        (slurms(n=3, nodes=1), False, [0, 3]),
    ],
)
def test_ranks_are_shared_out_over_the_nodes_of_a_job(
    monkeypatch: pytest.MonkeyPatch, options: StartOptions, ours: bool, counts: list[int]
) -> None:
    if not ours:
        monkeypatch.setenv("SLURM_TASKS_PER_NODE", "2(x2),1")
    monkeypatch.setattr(Job, "await_nodes", lambda _, tell: tell("waits") or ["a", "b", "c"])
    heard: list[str] = []
    there = joining.in_job(options, Job(JobInfo("7", ours=ours)), heard.append)
    assert there.counts == counts
    assert [launcher.host for launcher in there.launchers] == ["a", "b", "c"][: len(counts) - 1]
    assert there.address == "to a"
    assert heard == ["waits"]


def test_a_job_with_too_few_nodes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Job, "await_nodes", lambda _, __: ["a"])
    with pytest.raises(StartError, match="Slurm job 7 has 1 node, and --nodes says 2"):
        joining.in_job(slurms(n=2, nodes=2), Job(JobInfo("7", ours=False)), lambda _: None)
    with pytest.raises(StartError, match="How many ranks"):
        joining.in_job(slurms(), Job(JobInfo("7", ours=False)), lambda _: None)


@pytest.mark.parametrize(
    ("options", "counts", "address"),
    [
        (StartOptions(engines="mpi", hosts="a:2,b:1"), [0, 2, 1], "to a"),
        (StartOptions(engines="mpi", hosts="localhost,b", n=2), [0, 1, 1], "to b"),
        (StartOptions(engines="mpi", hosts="localhost:2"), [0, 2], "127.0.0.1"),
        (StartOptions(engines="mpi", n=5, nodes=2, address="1.2.3.4"), [0, 3, 2], "1.2.3.4"),
        (StartOptions(engines="mpi", n=5), [0, 5], "own"),
    ],
)
def test_mpi_starts_a_program_for_each_node(
    monkeypatch: pytest.MonkeyPatch, options: StartOptions, counts: list[int], address: str
) -> None:
    monkeypatch.setattr(hosts, "address_towards", lambda name: f"to {name}")
    monkeypatch.setattr(hosts, "own_address", lambda: "own")
    there = joining.by_mpi(options)
    assert (there.counts, there.address) == (counts, address)
    assert there.shared_launcher is not None
    assert all(launcher.shared for launcher in there.launchers)
    assert len(there.launchers) == len(counts) - 1


@pytest.mark.parametrize(
    ("options", "counts", "address"),
    [
        (StartOptions(engines="pbs", n=5, nodes=2, address="1.2.3.4"), [0, 3, 2], "1.2.3.4"),
        (StartOptions(engines="htcondor", gpus_per_node=4, nodes=2), [0, 4, 4], "own"),
        (StartOptions(engines="lsf", n=3), [0, 3], "own"),
    ],
)
def test_a_job_starts_a_program_for_each_of_its_nodes(
    monkeypatch: pytest.MonkeyPatch, options: StartOptions, counts: list[int], address: str
) -> None:
    monkeypatch.setattr(hosts, "own_address", lambda: "own")
    there = joining.by_batch(options)
    assert (there.counts, there.address) == (counts, address)
    assert there.shared_launcher is not None
    assert all(launcher.shared for launcher in there.launchers)
    assert len(there.launchers) == len(counts) - 1


def test_a_job_needs_a_number_of_ranks() -> None:
    with pytest.raises(StartError, match="How many ranks"):
        joining.by_batch(StartOptions(engines="sge", nodes=2))


def test_mpi_needs_a_number_of_ranks() -> None:
    with pytest.raises(StartError, match="How many ranks"):
        joining.by_mpi(StartOptions(engines="mpi", nodes=2))


@pytest.mark.parametrize(("address", "told"), [("10.1.2.3", "10.1.2.3"), ("127.0.1.1", ""), ("", "")])
def test_the_address_of_a_machine_is_no_loopback(monkeypatch: pytest.MonkeyPatch, address: str, told: str) -> None:
    def found(_: str) -> str:
        if not address:
            raise OSError("no such name")
        return address

    monkeypatch.setattr("socket.gethostbyname", found)
    if told:
        assert hosts.own_address() == told
    else:
        with pytest.raises(StartError, match="name the address by --address"):
            hosts.own_address()


def test_what_surrounds_a_program_is_there_on_every_way() -> None:
    options = StartOptions(engines="ssh", hosts="a:1,b:1", address="1.2.3.4", prologue="load", wrapper="box 'an image'")
    for launcher in joining.on_hosts(options).launchers:
        assert (launcher.prologue, launcher.wrapper) == ("load", ["box", "an image"])


def test_another_command_takes_the_place_of_ssh() -> None:
    options = StartOptions(engines="ssh", hosts="a:1,b:1", via="kubectl exec -i {host} -c 'my box' --", python="py")
    there = joining.on_hosts(options)
    commands = [launcher.command("m") for launcher in there.launchers]
    assert commands == [["kubectl", "exec", "-i", host, "-c", "my box", "--", "py", "-m", "m"] for host in "ab"]
    assert there.address == "to a", "ssh is not asked what is behind a name"
    with pytest.raises(StartError, match="does not name the host"):
        joining.on_hosts(StartOptions(engines="ssh", hosts="a:1", via="kubectl exec -i pod --"))


def test_a_dry_run_shows_the_commands_and_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = joining.in_words(StartOptions(engines="ssh", hosts="a:1,b:1", address="1.2.3.4", python="py"))
    for line, host in zip(ssh.splitlines(), "ab", strict=True):
        assert line.startswith("ssh -o BatchMode=yes ")
        assert line.endswith(f" {host} 'py -m nbcomm.node'")
    own = joining.in_words(slurms(n=2, python="py"))
    assert own.startswith("#!/bin/bash\n#SBATCH --job-name=nbcomm\n")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert joining.in_words(slurms(n=2, python="py")).startswith("srun --jobid=7 ")
    with pytest.raises(StartError, match="this start has none"):
        joining.in_words(StartOptions())


@pytest.mark.outside
def test_a_dry_run_shows_the_script_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    pbs = joining.in_words(StartOptions(engines="pbs", n=4, nodes=2, lines=("-m n",), python="py", wrapper="box"))
    assert pbs.startswith("# /home/me/.nbcomm/ID/script:\n#!/bin/bash\n#PBS -N nbcomm\n")
    assert "#PBS -l select=2:ncpus=2:mpiprocs=1\n" in pbs
    assert "#PBS -m n\n" in pbs
    assert " box py -m nbcomm.node /home/me/.nbcomm/ID\n" in pbs
    condor = joining.in_words(StartOptions(engines="htcondor", n=4, nodes=2))
    assert "\n# /home/me/.nbcomm/ID/description:\nexecutable = /bin/bash\n" in condor
    assert condor.endswith("\nqueue\n")


def test_options_are_remembered_with_what_is_known_better() -> None:
    options = slurms(n=4, nodes=2, lines=("--x",), name="old")
    written = {**vars(options), "lines": ["--x"], "from_another_version": 3}
    assert StartOptions.remembered(written, name="new") == slurms(n=4, nodes=2, lines=("--x",), name="new")
    assert StartOptions.remembered({}, n=3) == StartOptions(3)
