"""Who is told to live, and how it is ended."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from nbcomm.node.processes import liveness
from nbcomm.node.processes.liveness import kill_orphans, kill_with_children, lives
from nbcomm.world_dir import HOME_VARIABLE, WorldDir

from ..served import PATIENCE, await_that, has_ended, no_file_more

pytestmark = pytest.mark.timeout(60)


@contextmanager
def sleeper(environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["/bin/sleep", "60"], env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def home(tmp_path: Path) -> WorldDir:
    return WorldDir(tmp_path)


def test_a_process_of_the_world_lives_until_it_has_ended(home: WorldDir) -> None:
    with sleeper({HOME_VARIABLE: str(home.path)}) as process:
        await_that(lambda: lives(home, process.pid), "in the midst of its exec nothing can be read of it")
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE
        assert not lives(home, process.pid)
        process.wait()
        assert not lives(home, process.pid)


def test_a_process_of_another_world_does_not_count(home: WorldDir, tmp_path_factory: pytest.TempPathFactory) -> None:
    with sleeper({HOME_VARIABLE: str(tmp_path_factory.mktemp("other"))}) as process:
        assert not lives(home, process.pid)


def test_a_process_without_an_environment_is_none_of_the_world(home: WorldDir) -> None:
    with sleeper({}) as process:
        assert not lives(home, process.pid)


def test_a_process_that_is_about_to_have_its_environment_lives(home: WorldDir, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[dict[str, str]] = [{}, {}, {HOME_VARIABLE: str(home.path)}]
    monkeypatch.setattr(psutil.Process, "environ", lambda _: found.pop(0))
    monkeypatch.setattr(liveness, "_TIMEOUT", PATIENCE)  # a busy machine may take a second for three looks
    assert lives(home, os.getpid())
    assert found == []


def test_where_no_file_can_be_opened_nothing_is_said_of_a_process(home: WorldDir) -> None:
    with sleeper({HOME_VARIABLE: str(home.path)}) as process:
        await_that(lambda: lives(home, process.pid), "in the midst of its exec nothing can be read of it")
        with no_file_more():
            with pytest.raises(OSError, match="Too many open files"):
                lives(home, process.pid)
            assert not liveness.has_ended(home, process.pid)
        process.kill()
        await_that(lambda: liveness.has_ended(home, process.pid), "it lives on")


@pytest.mark.parametrize("ours", [True, False])
def test_a_process_of_which_the_system_tells_nothing_has_ended_if_it_is_another_users(
    home: WorldDir, monkeypatch: pytest.MonkeyPatch, ours: bool
) -> None:
    def refuse(process: psutil.Process) -> dict[str, str]:
        raise psutil.AccessDenied(process.pid)

    monkeypatch.setattr(psutil.Process, "environ", refuse)
    if not ours:
        monkeypatch.setattr(os, "getuid", lambda: 1 << 20)
    assert liveness.has_ended(home, os.getpid()) is not ours


def test_a_process_is_killed_with_its_child_processes(tmp_path: Path) -> None:
    told = tmp_path / "child"
    script = f"sleep 60 & echo $! > {told}.new; mv {told}.new {told}; wait"
    with subprocess.Popen(["/bin/sh", "-c", script], start_new_session=True) as process:
        try:
            await_that(told.exists, "there is no child process")
            child = psutil.Process(int(told.read_text()))
        finally:
            kill_with_children(process.pid)
        assert process.wait(PATIENCE) == -signal.SIGKILL
        await_that(lambda: has_ended(child), "the child process lives on")


def test_a_process_that_leads_no_group_is_killed_too() -> None:
    with subprocess.Popen(["/bin/sleep", "60"]) as process:
        kill_with_children(process.pid)
        assert process.wait(PATIENCE) == -signal.SIGKILL
        kill_with_children(process.pid)


_LEAVES = "sleep 60 >/dev/null & echo $!"


@contextmanager
def left_behind(command: str, environment: dict[str, str]) -> Iterator[tuple[int, psutil.Process]]:
    """A process that has told of another one in its group, with that one."""
    with subprocess.Popen(
        ["/bin/sh", "-c", command], env=environment, stdout=subprocess.PIPE, start_new_session=True
    ) as leader:
        assert leader.stdout is not None
        other = psutil.Process(int(leader.stdout.readline()))
        try:
            yield leader.pid, other
        finally:
            other.kill()
            leader.kill()


@pytest.mark.parametrize("reaped", [True, False])
def test_what_a_process_has_left_behind_is_killed(home: WorldDir, *, reaped: bool) -> None:
    with left_behind(_LEAVES, {HOME_VARIABLE: str(home.path)}) as (pid, orphan):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        if reaped:
            os.waitpid(pid, 0)
        kill_orphans(home, pid)
        await_that(lambda: has_ended(orphan), "it lives on")


def test_what_another_process_with_the_pid_has_left_or_has_is_not_killed(home: WorldDir, tmp_path: Path) -> None:
    with left_behind(_LEAVES, {HOME_VARIABLE: str(tmp_path / "other")}) as (pid, orphan):
        os.waitpid(pid, 0)
        kill_orphans(home, pid)
        assert not has_ended(orphan)
    with left_behind(f"{_LEAVES}; wait", {HOME_VARIABLE: str(home.path)}) as (pid, other):
        kill_orphans(home, pid)
        assert not has_ended(other)
        assert psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
