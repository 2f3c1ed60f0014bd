"""A seat for one process: who has it, and how another one gets it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from nbcomm.node.processes.seat import Seat

from ..ranks import PATIENCE

_SITS = """
import os, sys, time
from pathlib import Path
from nbcomm.node.processes.seat import Seat

seat = Seat(Path(sys.argv[1]))
getattr(seat, sys.argv[2])()
if sys.argv[3:] and os.fork() == 0:
    seat.close()  # as each fork of a fork server
os.write(1, f"{os.getpid()}\\n".encode())  # at once: its fork writes, too
time.sleep(600)
"""

Sit = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "seat"


@pytest.fixture
def sit(path: Path) -> Iterator[Sit]:
    """Start a process that wants the seat."""
    with ExitStack() as ends:

        def start(how: str = "take", *more: str) -> subprocess.Popen[str]:
            command = [sys.executable, "-c", _SITS, os.fspath(path), how, *more]
            made = ends.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            ends.callback(made.kill)
            return made

        yield start


def sits(process: subprocess.Popen[str]) -> int:
    """Wait until a process has said that it has the seat."""
    assert process.stdout is not None
    return int(process.stdout.readline())


def test_a_free_seat_has_no_holder_and_is_taken(path: Path) -> None:
    seat = Seat(path)
    assert seat.holder() == 0
    seat.vacate()
    seat.take_over()
    assert seat.holder() == 0, "it is this process"
    seat.close()


def test_the_system_tells_who_has_it(path: Path, sit: Sit) -> None:
    first = sit()
    sits(first)
    seat = Seat(path)
    assert seat.holder() == first.pid
    first.kill()
    first.wait(PATIENCE)
    assert seat.holder() == 0
    seat.close()


@pytest.mark.parametrize("stopped", [False, True])
def test_who_takes_it_over_ends_the_one_that_had_it(path: Path, sit: Sit, stopped: bool) -> None:
    first = sit()
    sits(first)
    if stopped:
        first.send_signal(signal.SIGSTOP)
    second = sit("take_over")
    assert sits(second) == second.pid
    assert first.wait(PATIENCE) == -signal.SIGKILL
    assert second.poll() is None
    seat = Seat(path)
    assert seat.holder() == second.pid
    seat.vacate()
    assert second.wait(PATIENCE) == -signal.SIGKILL
    seat.close()


def test_of_those_that_take_it_over_at_one_moment_one_is_left(path: Path, sit: Sit) -> None:
    sits(sit())
    rivals = [sit("take_over") for _ in range(4)]
    deadline = time.monotonic() + PATIENCE
    while sum(rival.poll() is None for rival in rivals) > 1:
        assert time.monotonic() < deadline
    (left,) = [rival for rival in rivals if rival.poll() is None]
    seat = Seat(path)
    assert sits(left) == left.pid == seat.holder()
    seat.close()


def test_a_fork_of_the_one_that_had_it_does_not_keep_it(path: Path, sit: Sit) -> None:
    first = sit("take", "and fork")
    one, other = sits(first), sits(first)
    fork = next(pid for pid in (one, other) if pid != first.pid)
    seat = Seat(path)
    try:
        assert seat.holder() == first.pid
        seat.take_over()
        assert first.wait(PATIENCE) == -signal.SIGKILL
        os.kill(fork, 0)
    finally:
        os.kill(fork, signal.SIGKILL)
        seat.close()


def test_one_that_does_not_end_is_named(path: Path, sit: Sit, monkeypatch: pytest.MonkeyPatch) -> None:
    first = sit()
    sits(first)
    monkeypatch.setattr(os, "kill", lambda *_: None)  # it waits in the kernel for a disk
    seat = Seat(path)
    with pytest.raises(TimeoutError, match=f"Process {first.pid}, which has served this world, does not end"):
        seat.vacate(time.monotonic() + 0.05)
    seat.close()


@pytest.mark.parametrize("holder", [0, -1])
def test_a_seat_whose_holder_cannot_be_ended_from_here_is_told(
    path: Path, sit: Sit, monkeypatch: pytest.MonkeyPatch, holder: int
) -> None:
    first = sit("take")
    sits(first)
    monkeypatch.setattr("nbcomm.node.processes.seat._PATIENCE", 0.1)
    seat = Seat(path)
    monkeypatch.setattr(seat, "holder", lambda: holder)
    with pytest.raises(TimeoutError, match="is locked by a process"):
        seat.take_over()
    assert first.poll() is None
    seat.close()
