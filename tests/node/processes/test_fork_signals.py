"""What ends a process that was forked a moment ago, or the one that forks it."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(60)

_FORKS = """
import os, signal, sys
from nbcomm.node.processes import fork_signals

told, tell = os.pipe()

def end(*_):
    print("the handler ran", "here" if os.getpid() == here else "in the child", flush=True)
    raise SystemExit(3)

here = os.getpid()
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, end)
child = 0
try:
    with fork_signals.held_back():
        child = os.fork()
        if child == 0:
            try:
                os.read(told, 1)
                fork_signals.let_through()
                signal.pause()
            finally:
                os._exit(0)
        os.kill(child if sys.argv[1] == "child" else here, getattr(signal, sys.argv[2]))
        os.write(tell, b"x")
        noted = child
finally:
    if sys.argv[1] == "here":
        print("noted", noted == child, flush=True)
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print("the child ended by", -status, flush=True)
"""
"""Forks a child that gives up its handlers only when the signal is there."""


def forks(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _FORKS, *argv], capture_output=True, text=True, timeout=50, check=False
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_a_child_that_was_forked_just_now_ends_it_and_runs_no_handler(number: signal.Signals) -> None:
    done = forks("child", number.name)
    assert (done.stdout, done.returncode) == (f"the child ended by {number.value}\n", 0), done.stderr


def test_a_signal_to_the_process_that_forks_waits_until_the_child_is_noted() -> None:
    done = forks("here", "SIGTERM")
    assert done.stdout == "the handler ran here\nnoted True\nthe child ended by 9\n", done.stderr
    assert done.returncode == 3
