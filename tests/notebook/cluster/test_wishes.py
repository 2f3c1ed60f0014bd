"""What a user may ask for together."""

from __future__ import annotations

import pytest

from nbcomm.errors import StartError
from nbcomm.launch.ways import schedulers
from nbcomm.notebook.cluster.wishes import SCHEDULERS, Wishes, check


@pytest.mark.parametrize(
    ("wishes", "said"),
    [
        (Wishes(hosts="a:1"), "--hosts a:1 needs --engines ssh or mpi."),
        (Wishes(engines="slurm", hosts="a:1"), "--hosts a:1 needs --engines ssh or mpi."),
        (Wishes(engines="ssh", hosts="a:1", nodes=1), "leave --nodes out"),
        (Wishes(engines="mpi", hosts="a:1", nodes=1), "leave --nodes out"),
        (
            Wishes(engines="mpi", n=2, lines=("--x",), partition="p"),
            "--partition needs --engines slurm, or pbs, sge, lsf or htcondor.",
        ),
        (Wishes(guard="rank"), "The guard 'rank' is unknown; write --guard world or node."),
        (Wishes(engines="slurm", n=2, via="x {host}"), "--via takes ssh's place, and needs --engines ssh."),
        (Wishes(gpus_per_node=2), "--gpus-per-node needs --engines slurm, or pbs, sge"),
        (Wishes(engines="ssh", hosts="a:1", lines=("--x",)), "--line needs --engines slurm, or pbs, sge"),
        (Wishes(idle=60.0), "--idle needs --engines slurm."),
        (Wishes(engines="pbs", n=2, time="5", before_end="save()"), "--before-end needs --engines slurm."),
        (Wishes(engines="sge", n=2, hosts="a:2"), "needs --engines ssh or mpi."),
        (Wishes(engines="htcondor", n=2, partition="p"), "HTCondor has no queues; leave --partition out"),
    ],
)
def test_options_of_another_engine_are_refused(wishes: Wishes, said: str) -> None:
    with pytest.raises(StartError) as refused:
        check(wishes)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "wishes",
    [
        Wishes(),
        Wishes(nodes=2),
        Wishes(engines="slurm", n=2, nodes=2, idle=60.0),
        Wishes(engines="mpi", lines=("--x",)),
        Wishes(engines="pbs", n=2, partition="p", gpus_per_node=1, time="1", account="a", lines=("-m n",)),
        Wishes(engines="htcondor", n=2, nodes=2, time="60"),
    ],
)
def test_what_fits_is_taken(wishes: Wishes) -> None:
    check(wishes)


def test_each_scheduler_is_known() -> None:
    assert (*schedulers.SCHEDULERS,) == SCHEDULERS
