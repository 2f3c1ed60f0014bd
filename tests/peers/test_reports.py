"""What torch's own reports say of a call, and of DDP: the same as where torch is alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed as dist

import nbcomm
from nbcomm.notebook.session.session import Session
from nbcomm.torch_versions import without_gloos_lines

REPORT = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

def report(rank):
    said = DistributedDataParallel(torch.nn.Linear(2, 2))._get_ddp_logging_data()
    events = {}
    for name in ("blocks", "is waited for"):
        x = torch.ones(3) * rank
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            if rank:
                dist.send(x, 0)
            elif name == "blocks":
                dist.recv(x)
            else:
                dist.irecv(x).wait()
        assert x[0] == 1
        events[name] = sorted({event.name for event in seen.events() if event.name.startswith(("c10d", "gloo"))})
    return said, events
"""
ALONE = f"""{REPORT}
import json, os
where, rank = os.environ["MEET"], int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=f"file://{{where}}", rank=rank, world_size=2)
print(json.dumps(report(dist.get_rank())))
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What it says without nbcomm, on two ranks."""
    meet = str(tmp_path_factory.mktemp("alone") / "store")
    both = [
        subprocess.Popen(
            [sys.executable, "-c", ALONE],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "MEET": meet, "RANK": str(rank)},
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=90)[0] for process in both]
    finally:
        for process in both:
            process.kill()
            process.wait()
    said = [without_gloos_lines(text) for text in said]
    return [json.loads(next(line for line in text.splitlines() if line.startswith("["))) for text in said]


@pytest.fixture(scope="module")
def ours() -> Iterator[list[Any]]:
    """What it says in a world of two ranks."""

    def look() -> Any:
        scope: dict[str, Any] = {}
        exec(REPORT, scope)  # noqa: S102 - in names of its own, as in a library
        return scope["report"](dist.get_rank())

    with nbcomm.start(2) as session:
        yield _called(session, look)


def _called(session: Session, look: Any) -> list[Any]:
    return list(session.call(look))


def test_ddp_is_told_the_same_of_its_group(alone: list[Any], ours: list[Any]) -> None:
    elsewhere = {"master_addr", "master_port", "gloo_socket_ifname"}
    for (first, _), (second, _) in zip(alone, ours, strict=True):
        assert first.keys() == second.keys()
        different = {name for name in first if first[name] != second[name]}
        assert different <= elsewhere, {name: (first[name], second[name]) for name in different}
        assert first["gloo_num_threads"] == 2


def test_a_receive_from_anyone_is_in_the_profile(alone: list[Any], ours: list[Any]) -> None:
    for (_, first), (_, second) in zip(alone, ours, strict=True):
        for name, events in first.items():
            assert set(events) <= set(second[name]), name
    assert alone[0][1]["blocks"] == ["c10d::recv_any_source_", "gloo:recvAnySource"]
