"""mpiexec's command and tokens, with scripts in its place; tests/nodes/inside_mpi.py has the real one."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from nbcomm.errors import StartError
from nbcomm.launch.launchers.mpi import Mpi
from nbcomm.node.join_token import JoinToken, read
from nbcomm.world_info import Launcher, LinkInfo

from ...node.served import await_that

TOKENS = [JoinToken("w", LinkInfo("tcp://127.0.0.1:1", "s", "p", f"secret{n}", f"node{n}"), 30.0) for n in (1, 2)]


@pytest.fixture(autouse=True)
def mpiexec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A mpiexec that only tells its version: that of Open MPI, unless it is written anew."""
    program = tmp_path / "bin" / "mpiexec"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'mpiexec (OpenRTE) 4.1.4'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return program


def test_one_program_is_started_on_each_host_in_the_words_of_each_mpi(
    mpiexec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    mpi = Mpi(["a", "b"], 2, Launcher("py"), ["-mca btl_tcp_if_include eth0"])
    end = ["-mca", "btl_tcp_if_include", "eth0", "py", "-m", "nbcomm.node", "TICKETS"]
    assert mpi.command()[:3] == ["mpiexec", "-n", "2"]
    assert mpi.command()[3:] == ["--host", "a,b", "--map-by", "ppr:1:node", "--bind-to", "none", *end]
    mpiexec.write_text("#!/bin/sh\necho 'HYDRA build details:'\n")
    assert mpi.command()[3:] == ["-hosts", "a,b", "-ppn", "1", *end]
    assert Mpi([], 2, Launcher("py")).command() == [
        "mpiexec",
        "-n",
        "2",
        "-ppn",
        "1",
        "py",
        "-m",
        "nbcomm.node",
        "TICKETS",
    ]


def test_of_what_it_says_the_first_lines_are_told_too(mpiexec: Path) -> None:
    mpi = Mpi(["a", "b"], 2, Launcher("py"))
    program = mpi.begin(TOKENS)
    mpiexec.write_text("#!/bin/sh\necho 'ssh: no host b'; seq 100; exit 1\n")
    program.start()
    await_that(lambda: program.status == 1, "it does not end")
    lines = program.last_words().splitlines()
    assert lines[:6] == ["ssh: no host b", "1", "2", "3", "4", "…"]
    assert lines[6:] == [str(n) for n in range(81, 101)]
    assert str(program) == "mpiexec"
    program.close()
    mpi.end()


def test_without_mpiexec_that_is_said_and_no_token_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    with pytest.raises(StartError, match="mpiexec could not be asked for its version"):
        Mpi([], 2, Launcher("py")).begin(TOKENS)
    assert not (tmp_path / "home").exists()


def test_each_program_takes_the_token_of_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mpi = Mpi([], 2, Launcher("py"))
    mpi.begin(TOKENS).close()
    (folder,) = (tmp_path / "home" / ".nbcomm").iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(StartError, match=r"Which join token of .* is this program's"):
        read(str(folder))
    for number in (0, 1):
        monkeypatch.setenv("PMI_RANK", str(number))
        assert read(str(folder)) == TOKENS[number]
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "2")
    with pytest.raises(StartError, match="cannot be read: No such file"):
        read(str(folder))
    mpi.end()
    mpi.end()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("hosts", "found", "counts"),
    [
        (["a", "b"], ["a", "b"], [4, 3]),
        (["a", "b"], ["b.example", "a.example"], [3, 4]),
        (["me@a.example", "b"], ["b", "a"], [3, 4]),
        (["10.0.0.1", "10.0.0.2"], ["b", "a"], [4, 3]),  # which is which is not known
        ([], ["b", "a"], [4, 3]),
    ],
)
def test_ranks_are_counted_for_the_machine_and_not_for_its_place(
    hosts: list[str], found: list[str], counts: list[int]
) -> None:
    assert Mpi(hosts, 2, Launcher("py")).in_order([4, 3], found) == counts
