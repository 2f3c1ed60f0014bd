"""``bench``, ``chart`` and ``--chart`` in a real notebook: what is drawn is what the ranks really did and hold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .notebook import Notebook, with_ranks
from .test_drawing import pictures


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A notebook with four ranks on the CPU."""
    with with_ranks(tmp_path_factory.mktemp("charts"), 4) as notebook:
        yield notebook


def chart(notebook: Notebook, code: str) -> list[str]:
    """The words of the chart that a cell shows."""
    (words,) = pictures(notebook.run(code, 90))
    return words.splitlines()


def refused(notebook: Notebook, code: str) -> str:
    """What is said of a request that cannot be done."""
    return notebook.run(code, fails=True).error_text.flat


@pytest.mark.parametrize("op", ["all_reduce", "all_to_all", "scatter", "sendrecv"])
def test_a_collective_is_measured(notebook: Notebook, op: str) -> None:
    lines = chart(notebook, f"%distributed bench {op} --max 64K")
    assert lines[0] == f"{op} on 4 ranks:"
    assert [line.split()[:2] for line in lines[2:6]] == [["1", "KiB"], ["4", "KiB"], ["16", "KiB"], ["64", "KiB"]]
    assert re.match(r"A call takes α = ", lines[6])
    assert "A copy of 64 KiB in memory takes" in lines[-1]


def test_messages_between_each_two_ranks_are_measured(notebook: Notebook) -> None:
    time, speed = (words.splitlines() for words in pictures(notebook.run("%distributed bench pairs", 90)))
    assert time[0] == "Time of a message of 1 KiB:"
    assert all(len(re.findall(r"\d (?:µs|ms|s)\b", line)) == 3 for line in time[2:6])
    assert all(len(re.findall(r"[GMk]B/s", line)) == 3 for line in speed[2:6])


def test_an_interrupt_in_the_midst_of_a_size_leaves_those_before(notebook: Notebook) -> None:
    code = """
import os, signal, threading
from nbcomm.notebook.measures import bench
whole = bench._median
def median(world, op, size, repeats):
    if size < 10_000:
        return whole(world, op, size, repeats)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    return whole(world, op, size, 100_000)
bench._median = median
"""
    notebook.run(code)
    try:
        lines = chart(notebook, "%distributed bench")
    finally:
        notebook.run("bench._median = whole")
    assert [line.split()[0] for line in lines[2:4]] == ["1", "4"]
    assert lines[-1] == "It was interrupted: larger sizes are not measured."
    assert "[0-3] 6" in notebook.run("%%distributed\nall_reduce(rank)").text


def test_what_cannot_be_measured_says_what_can(notebook: Notebook) -> None:
    assert "bcast cannot be measured. Choose broadcast, scatter," in refused(notebook, "%distributed bench bcast")
    assert "is no size; write for example 64K" in refused(notebook, "%distributed bench all_reduce --max many")


TRAINED = """%%distributed
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(128, 64, bias=False))
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(TensorDataset(torch.arange(10.0)), 2, sampler=DistributedSampler(range(10), 4, rank))
for _ in range(2):
    optimizer.zero_grad()
    model(torch.ones(8, 128)).sum().backward()
    optimizer.step()
"""


def test_memory_is_that_of_each_rank(notebook: Notebook) -> None:
    assert notebook.run(TRAINED, 90).text == ""
    notebook.run("%%distributed -r 2\nextra = torch.zeros(1024)")
    lines = chart(notebook, "%distributed chart memory model optimizer")
    assert lines[1] == "rank 0: weights 32 KiB, gradients 32 KiB, optimizer 64 KiB; 128 KiB in all"
    assert lines[5:] == ["No activations: no result is among them whose backward() has not run yet."]
    lines = chart(notebook, "%distributed chart memory")
    assert "other tensors" not in lines[2]
    assert "other tensors 4 KiB" in lines[3]


def test_samples_are_those_that_each_rank_gets(notebook: Notebook) -> None:
    notebook.run(TRAINED, 90)
    lines = chart(notebook, "%distributed chart samples loader --epochs 2")
    assert lines[0] == "Who gets which sample of loader:"
    assert sum(line.startswith("epoch ") for line in lines) == 2
    assert sum("twice or more" in line for line in lines) == 2  # 12 places for 10 samples


def test_shards_lie_on_their_mesh(notebook: Notebook) -> None:
    code = """%%distributed
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
weight = distribute_tensor(torch.ones(32, 8), mesh, [Replicate(), Shard(1)])
net = fully_shard(nn.Linear(8, 6), mesh=init_device_mesh("cpu", (4,)))
_ = net.eval()
"""
    assert notebook.run(code, 90).text == ""
    assert chart(notebook, "%distributed chart shards weight")[1:] == [
        "weight, 32 × 8, Replicate over dp, Shard(1) over tp",
        "  ranks 0,2: rows 0-31, columns 0-3",
        "  ranks 1,3: rows 0-31, columns 4-7",
    ]
    assert chart(notebook, "%distributed chart shards net")[1:5] == [
        "net.weight, 6 × 8, Shard(0)",
        "  rank 0: rows 0-1, columns 0-7",
        "  rank 1: rows 2-3, columns 0-7",
        "  rank 2: rows 4-5, columns 0-7",  # nothing is left for rank 3
    ]


def test_what_a_rank_does_not_have_is_said(notebook: Notebook) -> None:
    assert "nowhere cannot be read: NameError" in refused(notebook, "%distributed chart memory nowhere")
    assert "Name one value whose shards are drawn" in refused(notebook, "%distributed chart shards")


def test_a_step_shows_what_was_hidden(notebook: Notebook) -> None:
    """Half of the transfer is waited for at once, and the other half while the rank sleeps, which counts as work."""
    code = """%%distributed --chart step
import time
big = torch.zeros(4_000_000)
barrier()
handle = all_reduce(big, async_op=True)
time.sleep(0.5)
big = handle.wait()
time.sleep(0.5 * (rank == 1))
big = all_reduce(big)
"""
    lines = chart(notebook, code)
    assert lines[0] == "Where the time went:"
    assert all("compute during transfer" in line for line in lines[1:5])
    waits = {rank: "waiting" in lines[1 + rank] for rank in range(4)}
    assert [waits[rank] for rank in (0, 2, 3)] == [True] * 3
    found = re.fullmatch(r"Overlap: (\d+)% of the transfer was hidden behind compute\.", lines[5])
    assert found
    assert 5 <= int(found[1]) <= 95
    assert lines[6].startswith("rank 1 came last in ")


def test_ddp_shows_what_it_hides(notebook: Notebook) -> None:
    """C++ waits for its buckets, which no Python sees: who makes another call does not wait in the one before."""
    notebook.run(TRAINED, 90)
    lines = chart(notebook, "%%distributed --chart step\nmodel(torch.ones(8, 128)).sum().backward()")
    assert len([line for line in lines if line.startswith("rank ") and "in all" in line]) == 4
    assert any(line.startswith("Overlap: ") for line in lines)


PIPELINE = """%%distributed --chart pipeline
import time
def stage(micro):
    barrier()
    for number in range(micro):
        if rank:
            recv(rank - 1)
        time.sleep(0.05)
        if rank < world_size - 1:
            send(number, rank + 1)
    for number in range(micro):
        if rank < world_size - 1:
            recv(rank + 1)
        time.sleep(0.05)
        if rank:
            send(number, rank - 1)
stage(4)
"""


def test_a_pipeline_is_drawn_from_its_messages(notebook: Notebook) -> None:
    lines = chart(notebook, PIPELINE)
    assert re.findall(r"[FB]\d", lines[1]) == ["F0", "F1", "F2", "F3", "B0", "B1", "B2", "B3"]
    assert re.findall(r"[FB]\d", lines[2]) == ["F0", "F1", "F2", "F3", "B0", "B1", "B2", "B3"]
    assert re.findall(r"F3 B0|[FB]\d", lines[4]) == ["F0", "F1", "F2", "F3 B0", "B1", "B2", "B3"]
    found = re.fullmatch(r"Idle (\d+)% of the time; .* is 43% for 4 stages and 4 micro-batches\.", lines[5])
    assert found
    assert 40 <= int(found[1]) <= 75  # a busy machine adds some


def test_bytes_are_those_that_went(notebook: Notebook) -> None:
    code = """%%distributed --chart bytes
import torch.distributed as dist
_ = all_to_all([torch.zeros(256 * (1 + each)) for each in range(4)])
if rank == 3:
    send(torch.zeros(2048), 0)
if rank == 0:
    _ = recv(3)
data = torch.zeros(512)
dist.broadcast(data, 1)
"""
    lines = chart(notebook, code)
    assert lines[1:6] == [
        "to rank 0 1 2 3",
        "from rank 0: – 2 KiB 3 KiB 4 KiB",
        "from rank 1: 3 KiB – 5 KiB 6 KiB",
        "from rank 2: 1 KiB 2 KiB – 4 KiB",
        "from rank 3: 9 KiB 2 KiB 3 KiB –",
    ]


def test_a_cell_without_calls_says_so_and_a_cell_that_fails_shows_what_it_did(notebook: Notebook) -> None:
    shown = notebook.run("%%distributed --chart bytes\n1 + 1")
    assert "This cell made no collective and sent no message, so there is nothing to draw." in shown.text
    shown = notebook.run("%%distributed --chart step\nbarrier()\n1 / 0", fails=True)
    assert "ZeroDivisionError" in shown.error_text
    assert pictures(shown)[0].startswith("Where the time went:")


def test_a_chart_that_there_is_not_is_refused(notebook: Notebook) -> None:
    assert "invalid choice: 'steps'" in refused(notebook, "%%distributed --chart steps\nbarrier()")
    code = "from nbcomm.notebook.session import registry\nregistry.current().run('barrier()', chart='steps')"
    said = "There is no chart 'steps' of a cell's record. Choose step, pipeline, bytes."
    assert said in refused(notebook, code)


def test_a_script_has_its_chart(notebook: Notebook, tmp_path: Path) -> None:
    script = tmp_path / "step.py"
    script.write_text("import torch.distributed as dist\nimport torch\ndist.all_reduce(torch.zeros(1000))\n")
    assert chart(notebook, f"%distributed run --chart bytes {script}")[0] == "Bytes from rank to rank, 23.4 KiB in all:"
