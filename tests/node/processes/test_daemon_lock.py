"""The lock of the daemon: which process has it, and how another one gets it."""

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

from nbcomm.node.processes.daemon_lock import DaemonLock

from ..ranks import PATIENCE

_HOLDS = """
import os, sys, time
from pathlib import Path
from nbcomm.node.processes.daemon_lock import DaemonLock

lock = DaemonLock(Path(sys.argv[1]))
getattr(lock, sys.argv[2])()
if sys.argv[3:] and os.fork() == 0:
    lock.close()  # as each fork of a zygote
os.write(1, f"{os.getpid()}\\n".encode())  # at once: its fork writes, too
time.sleep(600)
"""

Holder = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "daemon"


@pytest.fixture
def start(path: Path) -> Iterator[Holder]:
    """Start a process that wants the lock."""
    with ExitStack() as ends:

        def begin(how: str = "acquire", *more: str) -> subprocess.Popen[str]:
            command = [sys.executable, "-c", _HOLDS, os.fspath(path), how, *more]
            made = ends.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            ends.callback(made.kill)
            return made

        yield begin


def holds(process: subprocess.Popen[str]) -> int:
    """Wait until a process has said that it has the lock."""
    assert process.stdout is not None
    return int(process.stdout.readline())


def test_a_free_lock_has_no_holder_and_is_taken(path: Path) -> None:
    lock = DaemonLock(path)
    assert lock.holder() == 0
    lock.kill_holder()
    lock.take_over()
    assert lock.holder() == 0, "it is this process"
    lock.close()


def test_the_system_tells_who_has_it(path: Path, start: Holder) -> None:
    first = start()
    holds(first)
    lock = DaemonLock(path)
    assert lock.holder() == first.pid
    first.kill()
    first.wait(PATIENCE)
    assert lock.holder() == 0
    lock.close()


@pytest.mark.parametrize("stopped", [False, True])
def test_who_takes_it_over_ends_the_one_that_had_it(path: Path, start: Holder, stopped: bool) -> None:
    first = start()
    holds(first)
    if stopped:
        first.send_signal(signal.SIGSTOP)
    second = start("take_over")
    assert holds(second) == second.pid
    assert first.wait(PATIENCE) == -signal.SIGKILL
    assert second.poll() is None
    lock = DaemonLock(path)
    assert lock.holder() == second.pid
    lock.kill_holder()
    assert second.wait(PATIENCE) == -signal.SIGKILL
    lock.close()


def test_of_those_that_take_it_over_at_one_moment_one_is_left(path: Path, start: Holder) -> None:
    holds(start())
    rivals = [start("take_over") for _ in range(4)]
    deadline = time.monotonic() + PATIENCE
    while sum(rival.poll() is None for rival in rivals) > 1:
        assert time.monotonic() < deadline
    (left,) = [rival for rival in rivals if rival.poll() is None]
    lock = DaemonLock(path)
    assert holds(left) == left.pid == lock.holder()
    lock.close()


def test_a_fork_of_the_one_that_had_it_does_not_keep_it(path: Path, start: Holder) -> None:
    first = start("acquire", "and fork")
    one, other = holds(first), holds(first)
    fork = next(pid for pid in (one, other) if pid != first.pid)
    lock = DaemonLock(path)
    try:
        assert lock.holder() == first.pid
        lock.take_over()
        assert first.wait(PATIENCE) == -signal.SIGKILL
        os.kill(fork, 0)
    finally:
        os.kill(fork, signal.SIGKILL)
        lock.close()


def test_one_that_does_not_end_is_named(path: Path, start: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    first = start()
    holds(first)
    monkeypatch.setattr(os, "kill", lambda *_: None)  # it waits in the kernel for a disk
    lock = DaemonLock(path)
    with pytest.raises(TimeoutError, match=f"Process {first.pid}, which has served this world, does not end"):
        lock.kill_holder(time.monotonic() + 0.05)
    lock.close()


@pytest.mark.parametrize("holder", [0, -1])
def test_a_lock_whose_holder_cannot_be_ended_from_here_is_told(
    path: Path, start: Holder, monkeypatch: pytest.MonkeyPatch, holder: int
) -> None:
    first = start("acquire")
    holds(first)
    monkeypatch.setattr("nbcomm.node.processes.daemon_lock._TIMEOUT", 0.1)
    lock = DaemonLock(path)
    monkeypatch.setattr(lock, "holder", lambda: holder)
    with pytest.raises(TimeoutError, match="is locked by a process"):
        lock.take_over()
    assert first.poll() is None
    lock.close()
