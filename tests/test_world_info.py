"""What is written down of a world."""

from __future__ import annotations

import subprocess

import pytest

from nbcomm.world_info import LinkInfo, Way


@pytest.mark.parametrize(
    ("way", "command"),
    [
        (Way("py"), ["py", "-m", "m", "a b"]),
        (Way("py", "h", ["ssh", "h"], as_text=True), ["ssh", "h", "py -m m 'a b'"]),
        (Way("py", "h", ["srun"]), ["srun", "py", "-m", "m", "a b"]),
        (Way("py", wrapper=["box", "image 1"]), ["box", "image 1", "py", "-m", "m", "a b"]),
        (Way("py", prologue="load x"), ["bash", "-lc", "load x\nexec py -m m 'a b'"]),
    ],
)
def test_a_command_is_made_for_its_way(way: Way, command: list[str]) -> None:
    assert way.command("m", "a b") == command


@pytest.mark.outside
def test_a_prologue_is_in_force_for_the_program_and_reads_nothing_of_its_input() -> None:
    way = Way("python3", "h", ["env"], prologue="export ODD='a  b'", wrapper=["env", "MORE=1"])
    command = way.command("os", "x")
    command[-1] = command[-1].replace("python3 -m os x", "sh -c 'cat; echo $ODD $MORE'")
    assert (
        subprocess.run(command, input="in\n", capture_output=True, text=True, check=True, timeout=60).stdout
        == "in\na b 1\n"
    )


def test_a_notebook_on_this_machine_is_known_by_its_address() -> None:
    assert LinkInfo("ipc:///x", "", "", "").is_here
    assert LinkInfo("tcp://127.0.0.1:5", "", "", "").is_here
    assert not LinkInfo("tcp://10.0.0.1:5", "", "", "").is_here
