"""What is written down of a world."""

from __future__ import annotations

import subprocess

import pytest

from nbcomm.world_info import Launcher, LinkInfo, behind, without_prologue


@pytest.mark.parametrize(
    ("launcher", "command"),
    [
        (Launcher("py"), ["py", "-m", "m", "a b"]),
        (Launcher("py", "h", ["ssh", "h"], as_text=True), ["ssh", "h", "py -m m 'a b'"]),
        (Launcher("py", "h", ["srun"]), ["srun", "py", "-m", "m", "a b"]),
        (Launcher("py", wrapper=["box", "image 1"]), ["box", "image 1", "py", "-m", "m", "a b"]),
    ],
)
def test_a_command_is_made_for_its_launcher(launcher: Launcher, command: list[str]) -> None:
    assert launcher.command("m", "a b") == command


def test_lines_of_a_shell_stand_before_the_program() -> None:
    *shell, text = Launcher("py", prologue="load x\nload y").command("m", "a b")
    assert shell == ["bash", "-lc"]
    assert "\nload x\nload y\n" in text
    assert text.endswith("\nexec py -m m 'a b'")


@pytest.mark.outside
@pytest.mark.parametrize(
    ("prologue", "failed", "others", "runs"),
    [
        ("true", "", "", True),
        ("echo hm >&2; exit 3", "the prologue has failed with exit code 3 on ", "hm\n", False),
        ("set -e\nfalse\ntrue", "the prologue has failed with exit code 1 on ", "", False),
        ("if", "the prologue has failed with exit code 2 on ", "syntax error", False),
        ("true\n(exit 4)", "the last line of the prologue has failed with exit code 4 on ", "", True),
        ("exit 3; nbcomm", "the prologue has failed with exit code 3 on ", "", False),
    ],
)
def test_a_prologue_that_fails_says_so(prologue: str, failed: str, others: str, runs: bool) -> None:
    done = subprocess.run(
        behind(prologue, ["echo", "it runs"]), capture_output=True, text=True, check=False, timeout=60
    )
    told, rest = without_prologue(done.stderr)
    assert told.startswith(failed)
    assert bool(told) == bool(failed)
    assert others in rest
    assert "prologue" not in rest
    assert (done.stdout == "it runs\n") == (done.returncode == 0) == runs


def test_of_many_machines_with_the_same_failure_two_are_named() -> None:
    told, _ = without_prologue("".join(f"nbcomm: the prologue has failed with exit code 1 on n{n}\n" for n in range(9)))
    assert told.endswith("exit code 1 on n0 and the prologue has failed with exit code 1 on n1 (and on 7 more)")


@pytest.mark.outside
def test_a_prologue_is_in_force_for_the_program_and_reads_nothing_of_its_input() -> None:
    launcher = Launcher("python3", "h", ["env"], prologue="export ODD='a  b'", wrapper=["env", "MORE=1"])
    command = launcher.command("os", "x")
    command[-1] = command[-1].replace("python3 -m os x", "sh -c 'cat; echo $ODD $MORE'")
    assert (
        subprocess.run(command, input="in\n", capture_output=True, text=True, check=True, timeout=60).stdout
        == "in\na b 1\n"
    )


def test_a_notebook_on_this_machine_is_known_by_its_address() -> None:
    assert LinkInfo("ipc:///x", "", "", "").is_here
    assert LinkInfo("tcp://127.0.0.1:5", "", "", "").is_here
    assert not LinkInfo("tcp://10.0.0.1:5", "", "", "").is_here
