"""`nbcomm.init` in a script; `tests/world/test_torchrun.py` has a real torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

import nbcomm
from nbcomm.comm import Communicator, torchrun
from nbcomm.torch_versions import without_gloos_lines

from ..worlds import Worlds, worlds_of_a_module  # noqa: F401 - a fixture

_VARIABLES = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.mark.parametrize("lost", _VARIABLES)
def test_what_is_missing_is_named(lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in _VARIABLES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(lost)
    with pytest.raises(nbcomm.CollectiveError, match=f"found no {lost} in .* torchrun"):
        nbcomm.init()
    assert torchrun.current is None


def test_a_group_that_is_there_is_used_as_it_is(worlds: Worlds) -> None:
    def join(comm: Communicator) -> Any:
        os.environ.update(
            RANK=str(comm.rank),
            WORLD_SIZE="2",
            LOCAL_RANK=str(comm.rank),
            LOCAL_WORLD_SIZE="1",
            GROUP_RANK="7",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT="1",  # nobody listens there, and nobody asks
        )
        made = nbcomm.init()
        return made is nbcomm.init(), made.all_reduce(1), made.rank, made.world_size, made.local_rank, made.node_rank

    for rank, answer in enumerate(worlds[2].run(join)):
        assert answer == (True, 2, rank, 2, rank, 7)


SCRIPT = """
import atexit
import torch.distributed as dist
atexit.register(lambda: print("initialized at the end:", dist.is_initialized()))
import nbcomm
comm = nbcomm.init()
for _ in range(2):
    dist.init_process_group("gloo", rank=comm.rank, world_size=comm.world_size)
group = dist.new_group([0])
dist.destroy_process_group()
print(comm.all_reduce(1), dist.is_initialized(), len(dist.distributed_c10d._world.pg_map))
{more}
"""


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("", ""),
        ("dist.destroy_process_group(); print(dist.is_initialized())", "False"),
        (
            "dist.init_process_group(); dist.barrier(); dist.destroy_process_group(); print(dist.is_initialized())",
            "True",
        ),
    ],
    ids=["left", "destroyed", "lent again"],
)
def test_what_init_has_made_is_lent_and_destroyed_at_the_end(more: str, told: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(more=more)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **_VARIABLES, "MASTER_PORT": "0"},
    )
    assert done.returncode == 0, done.stderr
    lines = without_gloos_lines(done.stdout).split("\n")
    assert lines == ["1 True 1", *([told] if told else []), "initialized at the end: False", ""]


BUSY = """
import hashlib, operator, threading, time
from pathlib import Path
import torch
from torch.torch_version import TorchVersion
import nbcomm
from nbcomm.comm import lending
from nbcomm.torch_internals import gloo_sockets, gloo_threads

def run():  # as a worker of gloo's that has told of its result, and still holds the call's tensors
    Path("/proc/thread-self/comm").write_text("pt_gloo_runloop")
    begun.set()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 500_000)  # without the interpreter's lock
    print("let go", flush=True)

lending._PATIENCE = 60  # a busy machine computes for long
begun = threading.Event()
comm = nbcomm.init()
until = time.monotonic() + 30
while len(gloo_threads._workers()) < gloo_sockets.THREADS and time.monotonic() < until:
    time.sleep(0.01)  # each names itself when it first runs
alike = operator.eq if TorchVersion(torch.__version__) >= "2.11" else operator.ge  # before, they have no name
print(comm.all_reduce(1), alike(len(gloo_threads._workers()), gloo_sockets.THREADS), flush=True)
threading.Thread(target=run, daemon=True).start()
begun.wait()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells which thread runs")
def test_the_end_of_a_script_waits_for_the_threads_of_gloo() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BUSY],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **_VARIABLES, "MASTER_PORT": "0"},
    )
    assert (done.returncode, without_gloos_lines(done.stdout)) == (0, "1 True\nlet go\n"), done.stderr
