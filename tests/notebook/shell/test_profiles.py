"""Options of a start that are written down in a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from nbcomm import profile_file
from nbcomm.errors import StartError
from nbcomm.notebook.cluster.start_options import StartOptions
from nbcomm.notebook.session import registry
from nbcomm.notebook.shell import profiles
from nbcomm.notebook.shell.hints import Hints
from nbcomm.notebook.shell.magics import DistributedMagics
from nbcomm.notebook.shell.routing import Auto

HPC = """
[hpc]
engines = "slurm"
nodes = 2
gpus-per-node = 4
timeout = 300
idle = "30m"
lines = ["--qos=high", "--x"]
hosts = "a:1"

[other]
hosts = ["a:2", "b:2"]
"""


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file, with two profiles."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = tmp_path / "nbcomm" / "profiles.toml"
    path.parent.mkdir()
    path.write_text(HPC)
    assert profile_file.path() == path
    return path


def test_without_a_variable_the_file_is_below_the_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert profile_file.path() == tmp_path / ".config" / "nbcomm" / "profiles.toml"


def test_a_profile_is_read_as_options() -> None:
    assert profiles.read("other") == {"hosts": "a:2,b:2"}
    read = profiles.read("hpc")
    assert (read["gpus_per_node"], read["lines"], read["idle"]) == (4, ["--qos=high", "--x"], "30m")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[hpc]\nnode = 2", "is no option of a start; did you mean nodes?"),
        ("[hpc]\nzzz = 2", "zzz ([hpc] in "),
        ('[hpc]\nname = "x"', "is no option of a start"),
        ("[hpc]\nnodes = true", "must be a number, not True"),
        ('[hpc]\nnodes = "2"', "must be a number, not '2'"),
        ("[hpc]\npartition = 3", "must be a text, not 3"),
        ("[hpc]\nlines = [3]", "must be a list of texts"),
        ("[hpc]\nlines = 3", "must be a list of texts"),
        ("[other]\nn = 3", "has no profile 'hpc'; it has other."),
        ("n = 3", "it has none."),
        ("[hpc", "is no TOML"),
    ],
)
def test_what_cannot_be_meant_is_refused(file: Path, text: str, said: str) -> None:
    file.write_text(text)
    with pytest.raises(StartError) as refused:
        profiles.read("hpc")
    assert said in str(refused.value)


def test_a_file_that_is_not_there_is_named(file: Path) -> None:
    file.unlink()
    with pytest.raises(StartError, match=f"{file}, cannot be read: No such file"):
        profiles.read("hpc")


@pytest.fixture
def magics() -> Iterator[DistributedMagics]:
    shell = InteractiveShell.instance()
    yield DistributedMagics(shell, Auto(shell), Hints(shell, Auto(shell)))
    InteractiveShell.clear_instance()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[StartOptions]:
    """What was asked for by starts, all of which fail."""
    asked: list[StartOptions] = []

    def start(progress: Any, **start_options: Any) -> None:
        asked.append(StartOptions(**start_options))
        raise StartError("enough")

    monkeypatch.setattr(registry, "start", start)
    return asked


def test_what_is_typed_wins_over_the_profile(magics: DistributedMagics, asked: list[StartOptions]) -> None:
    for line in ("start --profile hpc -n 8 --nodes 4", "start --profile other --engines ssh", "start -n 2"):
        with pytest.raises(StartError, match="enough"):
            magics._steer(line)
    hpc, other, plain = asked
    assert (hpc.n, hpc.nodes, hpc.engines, hpc.timeout) == (8, 4, "slurm", 300)
    assert (hpc.idle, hpc.lines, hpc.gpus_per_node) == (1800.0, ("--qos=high", "--x"), 4)
    assert other == StartOptions(engines="ssh", hosts="a:2,b:2")
    assert plain == StartOptions(2), "a profile is for one start"


def test_a_variable_names_the_profile_of_those_that_name_no_machines(
    magics: DistributedMagics, asked: list[StartOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NBCOMM_PROFILE", "hpc")
    lines = (
        "start -n 8",
        "start --profile other --engines ssh",
        "start --engines local -n 2",
        "start --engines=mpi -n 2",
        'start --profile "" -n 3',
    )
    for line in lines:
        with pytest.raises(StartError, match="enough"):
            magics._steer(line)
    with pytest.raises(StartError, match="enough"):
        magics._session_for(None, "")
    assert [(start_options.engines, start_options.n) for start_options in asked] == [
        ("slurm", 8),
        ("ssh", None),
        ("local", 2),
        ("mpi", 2),
        ("local", 3),
        ("slurm", None),
    ]
    assert (asked[-1].idle, asked[-1].lines, asked[-1].hosts) == (1800.0, ("--qos=high", "--x"), "a:1")
    monkeypatch.setenv("NBCOMM_PROFILE", "away")
    with pytest.raises(StartError, match="has no profile 'away'"):
        magics._steer("start -n 2")
    magics._steer("help")


def test_what_all_ranks_are_to_share_is_written_there(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(profile_file.PRELOAD_VARIABLE, "")  # remembered, so that what is set here is undone
    monkeypatch.delenv(profile_file.PRELOAD_VARIABLE)
    profile_file.set_preload()
    assert profile_file.PRELOAD_VARIABLE not in os.environ
    file.write_text('preload = ["a", "b.c"]\n' + file.read_text())
    profile_file.set_preload()
    assert os.environ[profile_file.PRELOAD_VARIABLE] == "a,b.c"
    file.write_text("preload = 3\n")
    profile_file.set_preload()
    assert os.environ[profile_file.PRELOAD_VARIABLE] == "a,b.c", "the variable wins"
    monkeypatch.delenv(profile_file.PRELOAD_VARIABLE)
    with pytest.raises(StartError, match="must be a list of names of modules, not 3"):
        profile_file.set_preload()
