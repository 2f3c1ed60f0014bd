"""What a user may ask for together."""

from __future__ import annotations

import pytest

from nbcomm.errors import StartError
from nbcomm.launch.launchers import schedulers
from nbcomm.notebook.cluster.start_options import SCHEDULERS, StartOptions, check


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (StartOptions(device="cpu", share=True), "--share lets ranks share a GPU, and --device cpu uses none"),
        (StartOptions(hosts="a:1"), "--hosts a:1 needs --engines ssh or mpi."),
        (StartOptions(engines="slurm", hosts="a:1"), "--hosts a:1 needs --engines ssh or mpi."),
        (StartOptions(engines="ssh", hosts="a:1", nodes=1), "leave --nodes out"),
        (StartOptions(engines="mpi", hosts="a:1", nodes=1), "leave --nodes out"),
        (
            StartOptions(engines="mpi", n=2, lines=("--x",), partition="p"),
            "--partition needs --engines slurm, or pbs, sge, lsf or htcondor.",
        ),
        (StartOptions(guard="rank"), "The guard 'rank' is unknown; write --guard world or node."),
        (StartOptions(engines="slurm", n=2, via="x {host}"), "--via replaces ssh, so it needs --engines ssh."),
        (StartOptions(gpus_per_node=2), "--gpus-per-node needs --engines slurm, or pbs, sge"),
        (StartOptions(engines="ssh", hosts="a:1", lines=("--x",)), "--line needs --engines slurm, or pbs, sge"),
        (StartOptions(idle=60.0), "--idle needs --engines slurm."),
        (StartOptions(engines="pbs", n=2, time="5", before_end="save()"), "--before-end needs --engines slurm."),
        (StartOptions(engines="sge", n=2, hosts="a:2"), "needs --engines ssh or mpi."),
        (StartOptions(engines="htcondor", n=2, partition="p"), "HTCondor has no queues; leave --partition out"),
    ],
)
def test_options_of_another_engine_are_refused(options: StartOptions, said: str) -> None:
    with pytest.raises(StartError) as refused:
        check(options)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "options",
    [
        StartOptions(),
        StartOptions(nodes=2),
        StartOptions(engines="slurm", n=2, nodes=2, idle=60.0),
        StartOptions(engines="mpi", lines=("--x",)),
        StartOptions(engines="pbs", n=2, partition="p", gpus_per_node=1, time="1", account="a", lines=("-m n",)),
        StartOptions(engines="htcondor", n=2, nodes=2, time="60"),
    ],
)
def test_what_fits_is_taken(options: StartOptions) -> None:
    check(options)


def test_each_scheduler_is_known() -> None:
    assert (*schedulers.SCHEDULERS,) == SCHEDULERS
