"""What a node has left is ended by a program of its own, and nothing else is."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from nbcomm.node import fence as fencing
from nbcomm.node.processes import liveness
from nbcomm.node.processes.liveness import lives
from nbcomm.world_dir import WorldDir

from .served import PATIENCE, Served, await_that, has_ended, quickly


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Served]:
    quickly(monkeypatch, tmp_path)
    made = Served()
    yield made
    made.close()


def fence(home: WorldDir, *pids: int) -> None:
    command = [sys.executable, "-m", "nbcomm.node.fence", os.fspath(home.path), *map(str, pids)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def _killed(process: psutil.Process) -> None:
    process.kill()


def _stopped(process: psutil.Process) -> None:
    process.suspend()


def _well(_: psutil.Process) -> None:
    pass


@pytest.mark.parametrize("fate", [_killed, _stopped, _well])
def test_it_ends_all_of_a_node_and_removes_the_directory(
    served: Served, fate: Callable[[psutil.Process], None]
) -> None:
    ranks = [served.engine(f"rank {rank}") for rank in range(2)]
    daemon, zygote = served.daemon, served.zygote
    fate(daemon)
    fence(served.home)
    for process in (*ranks, daemon, zygote):
        await_that(lambda process=process: has_ended(process), "it lives on")  # type: ignore[misc]
    assert not served.home.path.exists()
    fence(served.home)  # where nothing is left, nothing is done


def test_it_ends_also_what_could_not_be_written_down(served: Served) -> None:
    rank = served.engine("rank 0")
    served.daemon.suspend()
    served.home.write_children(b"[]")
    fence(served.home, rank.pid)
    await_that(lambda: has_ended(rank), "it lives on")


def test_a_signal_to_end_does_not_end_it_before_it_is_done(served: Served) -> None:
    (Path(os.environ["STUMBLES"]) / "remove").touch()
    fence(served.home)
    assert not served.home.path.exists()


def test_it_harms_no_process_that_has_the_pid_of_a_rank() -> None:
    home = WorldDir.create()
    with subprocess.Popen(["sleep", "600"]) as stranger:
        try:
            home.write_children(msgspec.json.encode([(9, "rank 9", stranger.pid, "")]))
            fence(home)
            assert stranger.poll() is None
            assert not home.path.exists()
        finally:
            stranger.kill()


def test_one_of_which_nothing_is_known_does_not_keep_the_others_from_their_end(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = [served.engine(f"rank {rank}") for rank in range(2)]

    def failing(home: WorldDir, pid: int) -> bool:
        if pid == ranks[0].pid:
            raise OSError(errno.EMFILE, "Too many open files")
        return lives(home, pid)

    monkeypatch.setattr(fencing, "_TIMEOUT", 0.1)
    monkeypatch.setattr(liveness, "lives", failing)
    fencing.fence(served.home)
    await_that(lambda: has_ended(ranks[1]), "it lives on")
    assert not served.home.path.exists()
    assert not has_ended(ranks[0])
    ranks[0].kill()
