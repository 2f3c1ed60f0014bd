"""A notebook's cells move to a script unchanged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import nbcomm

SCRIPT = """
import os, nbcomm, torch.distributed as dist
comm = nbcomm.init()
assert nbcomm.init() is comm
total = comm.all_reduce(comm.rank + 1)
comm.rank_print("total", total, "of", comm.world_size, comm.gather(comm.local_rank) == [0, 1])
dist.destroy_process_group()
"""


@pytest.mark.nightly
def test_init_under_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "total 3 of 2 True"


def test_init_without_torchrun_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(nbcomm.CollectiveError, match=r"RANK.*torchrun"):
        nbcomm.init()
