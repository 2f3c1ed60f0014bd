"""What ipcluster's configuration says of a start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nbcomm.errors import StartError
from nbcomm.notebook.cluster import ipython_profile
from nbcomm.notebook.shell import profiles

TEMPLATE = """#!/bin/sh
#SBATCH --qos=high
#SBATCH --ntasks={n}
# a comment
module load x
source y

srun {program_and_args}
echo never
"""


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Write a profile with these lines, and read it as the options of a start."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    (tmp_path / "profile_mine").mkdir()

    def tell(*lines: str) -> dict[str, Any]:
        code = "\n".join(["c = get_config()", *lines])
        (tmp_path / "profile_mine" / "ipcluster_config.py").write_text(code)
        return profiles.read("ipython:mine")

    return tell


@pytest.mark.parametrize(
    ("lines", "options"),
    [
        ([], {}),
        (["c.Cluster.n = 3"], {"n": 3}),
        (
            [
                "c.Cluster.engine_launcher_class = 'ssh'",
                "c.SSHEngineSetLauncher.engines = {'a': 4, 'me@b': (2, ['--x']), 'c': {'n': 3}}",
                "c.SSHLauncher.remote_python = '/opt/python'",
                "c.Cluster.n = 99",  # only a limit there
            ],
            {"engines": "ssh", "hosts": "a:4,me@b:2,c:3", "python": "/opt/python"},
        ),
        (
            [
                "c.Cluster.engine_launcher_class = 'ipyparallel.cluster.launcher.MPIEngineSetLauncher'",
                "c.MPILauncher.mpi_args = ['-x', 'ONE=a b']",
                "c.Cluster.n = 4",
            ],
            {"engines": "mpi", "n": 4, "lines": ["-x 'ONE=a b'"]},
        ),
        (
            [
                "c.Cluster.engine_launcher_class = 'slurm'",
                "c.SlurmLauncher.queue = 'main'",
                "c.SlurmEngineSetLauncher.timelimit = 90",
                "c.SlurmEngineSetLauncher.account = 'me'",
                "c.SlurmEngineSetLauncher.qos = 'low'",
                "c.SlurmEngineSetLauncher.options = '--mem=1G --exclusive'",
            ],
            {
                "engines": "slurm",
                "partition": "main",
                "time": "90",
                "account": "me",
                "lines": ["--qos=low", "--mem=1G", "--exclusive"],
            },
        ),
        (
            ["c.Cluster.engine_launcher_class = 'slurm'", f"c.SlurmEngineSetLauncher.batch_template = {TEMPLATE!r}"],
            {"engines": "slurm", "lines": ["--qos=high"], "prologue": "module load x\nsource y"},
        ),
        (
            ["c.Cluster.engine_launcher_class = 'sge'", "c.SGEEngineSetLauncher.queue = 'long'"],
            {"engines": "sge", "partition": "long"},
        ),
        (
            ["c.Cluster.engine_launcher_class = 'pbs'", "c.PBSLauncher.batch_template = '#PBS -l mem=1gb\\n{program}'"],
            {"engines": "pbs", "lines": ["-l mem=1gb"]},
        ),
        (["c.Cluster.engine_launcher_class = 'lsf'"], {"engines": "lsf"}),
        (["c.Cluster.engine_launcher_class = 'htcondor'"], {"engines": "htcondor"}),
    ],
)
def test_a_profile_is_read_as_options(
    told: Callable[..., dict[str, Any]], lines: list[str], options: dict[str, Any]
) -> None:
    assert told(*lines) == options


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["c.Cluster.engine_launcher_class = 'winhpc'"], "has the launcher WindowsHPCEngineSetLauncher"),
        (["c.Cluster.engine_launcher_class = 'nothing'"], "has no launcher that can be used"),
        (["1 / 0"], "ipcluster_config.py fails: ZeroDivisionError: division by zero."),
        (
            ["c.Cluster.engine_launcher_class = 'mpi'", "c.MPILauncher.mpi_cmd = ['srun', '--mpi=pmi2']"],
            "starts MPI by srun --mpi=pmi2; nbcomm uses mpiexec.",
        ),
        (
            ["c.Cluster.engine_launcher_class = 'pbs'", "c.PBSLauncher.batch_template_file = '/nowhere/x'"],
            "has a template that cannot be read",
        ),
    ],
)
def test_what_nbcomm_cannot_do_is_said(told: Callable[..., dict[str, Any]], lines: list[str], said: str) -> None:
    with pytest.raises(StartError) as refused:
        told(*lines)
    assert said in str(refused.value)


def test_a_profile_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    with pytest.raises(StartError, match="IPython has no profile 'away'"):
        ipython_profile.read("away")
    (tmp_path / "profile_away").mkdir()
    with pytest.raises(StartError, match=r"has no .*profile_away/ipcluster_config\.py"):
        ipython_profile.read("away")
