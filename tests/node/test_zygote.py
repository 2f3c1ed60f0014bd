"""The zygote of a daemon that ends before it has heard what was forked."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from nbcomm.node.processes.children import written_down
from nbcomm.protocol import Started
from nbcomm.world_dir import HOME_VARIABLE, WorldDir

from .served import PATIENCE, await_that

DAEMON = """
import os, select, signal, sys, types

from nbcomm.node.processes import child, parenthood
from nbcomm.node.zygote import Zygote
from nbcomm.protocol import Ready, Start
from nbcomm.world_dir import WorldDir

engine = sys.modules["quick"] = types.ModuleType("quick")
engine.main = lambda argv: signal.pause()
child.MODULES = {"engine": "quick"}
parenthood.adopt_orphans()
zygote = Zygote(WorldDir(sys.argv[1]))
zygote.fork(lambda: Ready(True, 0, ""))
while not zygote.forks:
    select.select([zygote.channel], [], [])
    zygote.receive()
zygote.order([Start(7, "rank 3", "engine", [], dict(os.environ), "/", public="key")])
select.select([zygote.channel], [], [])  # it has told what it has forked
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def home() -> Iterator[WorldDir]:
    made = WorldDir.create()
    yield made
    for left in written_down(made):
        psutil.Process(left.pid).kill()
    made.remove()


@pytest.mark.ranks
def test_what_was_forked_for_a_daemon_that_has_not_heard_of_it_is_known_to_the_next_one(home: WorldDir) -> None:
    command = [sys.executable, "-c", DAEMON, os.fspath(home.path)]
    environment = {**os.environ, HOME_VARIABLE: os.fspath(home.path)}
    subprocess.run(command, cwd=Path(__file__).parents[2], env=environment, timeout=PATIENCE, check=False)
    await_that(lambda: written_down(home), "nobody knows of it")
    (left,) = written_down(home)
    assert left == Started(7, "rank 3", left.pid, "key")
    assert psutil.Process(left.pid).is_running()
