"""The daemon of a node that joins by a command, as that shows it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from nbcomm.errors import StartError
from nbcomm.launch.launchers.joined import JoinedNode
from nbcomm.launch.launchers.program import Program
from nbcomm.node.join_token import JoinToken
from nbcomm.world_info import Launcher, LinkInfo

from ...node.served import await_that

TOKEN = JoinToken("w", LinkInfo("tcp://127.0.0.1:1", "server", "public", "secret", "node1"), 30.0)
Make = Callable[..., JoinedNode]


@pytest.fixture
def joined() -> Iterator[Make]:
    """Make one whose command is a shell script; what would be run there is its $0."""
    made: list[JoinedNode] = []

    def make(script: str, python: str = "python") -> JoinedNode:
        made.append(JoinedNode(TOKEN, Launcher(python, "a", ["sh", "-c", script], as_text=True)))
        return made[-1]

    yield make
    for one in made:
        one.kill()
        one.close()


def ended(one: JoinedNode) -> bool:
    await_that(lambda: one.has_ended, "it does not end")
    return True


def test_the_command_gets_the_token_and_runs_the_module_there(joined: Make, tmp_path: Path) -> None:
    one = joined(f"cat > {tmp_path}/token; echo $0", python="/opt/my python/bin/python")
    assert not one.is_ours
    one.start()
    assert ended(one)
    assert one.is_ours
    assert one.last_words() == "'/opt/my python/bin/python' -m nbcomm.node"
    assert (tmp_path / "token").read_bytes() == TOKEN.written()


def test_a_command_that_reads_nothing_says_why(joined: Make) -> None:
    one = joined("echo no such host >&2; exit 3")
    one.start()
    assert ended(one)
    assert one.last_words() == "no such host"
    assert one.how == "ended with exit code 3"
    assert not one.is_cut_off


@pytest.mark.parametrize("script", ["exit 255", "kill -9 $$"])
def test_ssh_that_was_cut_off_tells_nothing_of_the_node(joined: Make, script: str) -> None:
    one = joined(script)
    one.start()
    assert ended(one)
    assert one.is_cut_off


def test_on_this_machine_a_killed_program_is_an_end(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nkill -9 $$\n")
    program.chmod(0o755)
    one = JoinedNode(TOKEN, Launcher(os.fspath(program)))
    one.start()
    assert ended(one)
    assert not one.is_cut_off
    one.close()


def test_who_is_told_to_end_ends_and_who_does_not_is_killed(joined: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nbcomm.launch.launchers.program._END", 0.2)
    one = joined("trap '' TERM; echo up; while :; do sleep 1; done")
    one.start()
    await_that(lambda: one.last_words() == "up", "it does not begin")
    one.kill()
    assert one.has_ended
    assert one.how == "was killed by SIGKILL"


def test_the_fence_is_a_command_of_the_node(joined: Make, tmp_path: Path) -> None:
    joined(f"echo $0 > {tmp_path}/fence").fence(30.0, [12, 13])
    assert (tmp_path / "fence").read_text() == "python -m nbcomm.node.fence w-node1 12 13\n"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo no host >&2; exit 3", "sh ended with exit code 3\nno host"),
        ("kill -9 $$", "sh was killed by SIGKILL"),
        ("exec sleep 60", "sh did not end within 0.2 s"),
    ],
)
def test_a_fence_that_fails_is_told_in_words(joined: Make, script: str, said: str) -> None:
    with pytest.raises(StartError) as failed:
        joined(script).fence(0.2 if "60" in script else 30.0)
    assert str(failed.value) == said
    assert failed.value.__suppress_context__


_SETS = """
import json, os
from nbcomm.launch.launchers.joined import JoinedNode
from nbcomm.node.join_token import JoinToken
from nbcomm.world_info import LinkInfo, Launcher

os.environ |= {"NCCL_DEBUG": "INFO", "CUDA_VISIBLE_DEVICES": "3", "SLURM_JOB_ID": "7", "BEFORE": "changed"}
one = JoinedNode(JoinToken("w", LinkInfo("", "", "", ""), 1.0), Launcher("python", "a", ["ssh", "a"]))
print(json.dumps(one.environment({"A": "b"})))
"""


def test_what_the_notebook_has_set_is_added_and_what_is_the_machines_own_is_not() -> None:
    command, environment = [sys.executable, "-c", _SETS], {**os.environ, "BEFORE": "it", "UNCHANGED": "it"}
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout
    assert json.loads(said) == {"A": "b", "NCCL_DEBUG": "INFO", "BEFORE": "changed"}


def test_where_it_is_not_known_what_was_set_nothing_is_added(joined: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_bytes", lambda _: b"[pytest-xdist running] something\0\0")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    assert joined("").environment({"A": "b"}) == {"A": "b"}


def test_it_does_not_get_the_notebooks_interrupt(joined: Make) -> None:
    one = joined("echo $$; sleep 600")
    one.start()
    await_that(lambda: one.last_words() != "", "it does not begin")
    pid = int(one.last_words())
    assert os.getpgid(pid) != os.getpgid(0)
    os.killpg(pid, signal.SIGKILL)
    assert not psutil.pid_exists(pid) or ended(one)


# ── where one command starts the programs of all nodes ──────────────────────────────────────────────


def shared(script: str) -> tuple[JoinedNode, JoinedNode]:
    program = Program(["sh", "-c", script])
    launcher = Launcher("py", "h", shared=True)
    return JoinedNode(TOKEN, launcher, shared=program), JoinedNode(TOKEN, launcher, shared=program)


def test_one_command_is_started_once_for_all_and_never_again(tmp_path: Path) -> None:
    one, other = shared(f"echo . >> {tmp_path}/started")
    one.start()
    other.start()
    assert ended(one)
    assert other.has_ended
    assert other.has_cleared
    with pytest.raises(
        StartError, match=r"^sh ended with exit code 0\. The programs of all nodes were started together"
    ):
        one.start()
    assert one.starter == "sh"
    assert (tmp_path / "started").read_text() == ".\n"
    one.fence(1.0)
    one.close()


@pytest.mark.parametrize("script", ["exit 3", "kill -9 $$"])
def test_what_ends_one_program_tells_nothing_of_each_node(script: str) -> None:
    one, _ = shared(script)
    one.start()
    assert ended(one)
    assert one.is_cut_off
    assert not one.has_cleared
    with pytest.raises(StartError, match="nothing can be started on one node alone"):
        one.fence(1.0)
    one.close()


def test_another_notebook_does_not_start_on_its_own_machine_what_was_started_with_others(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    program.chmod(0o755)
    one = JoinedNode(TOKEN, Launcher(os.fspath(program), "a", shared=True))
    assert one.without_heal
    with pytest.raises(StartError, match="none can be started again alone; type %distributed restart"):
        one.start()
    assert not one.is_ours
    assert not (tmp_path / "started").exists()
    one.close()


def test_what_was_taken_back_cannot_be_started_again(joined: Make) -> None:
    why = ""
    one = JoinedNode(TOKEN, Launcher("py", "a", ["true"]), taken_back=lambda: why)
    assert not one.without_heal
    assert not one.starter
    why = "The job is over."
    assert one.without_heal == why
    one.close()
