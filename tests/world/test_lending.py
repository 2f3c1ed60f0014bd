"""Tutorials make their process group and destroy it: pasted into cells they get the world's, which outlives them."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from .notebook import Notebook

SETUP = """
import os
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def setup(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"
    dist.init_process_group("gloo", rank=rank, world_size=world_size)

def cleanup():
    dist.destroy_process_group()

def demo(rank, world_size):
    setup(rank, world_size)
    torch.manual_seed(0)
    model = DDP(torch.nn.Linear(10, 5))
    pair = dist.new_group([0, 1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    torch.nn.MSELoss()(model(torch.ones(20, 10) * rank), torch.ones(20, 5)).backward()
    optimizer.step()
    cleanup()
    return pair, model
"""
"""As in torch's own tutorial of DDP."""

HELD = "kept = new_group([0, 1])\nheld = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))"
GOOD = (
    "%%distributed\nif rank < 2: assert all_reduce(1, group=kept) == 2\n"
    "held(torch.ones(1, 2)).sum().backward()\nall_reduce(1)"
)
RIGHT = "[0-3] 4\n"
INIT = "dist.init_process_group('gloo', rank=rank, world_size=world_size)"
DESTROY = "dist.destroy_process_group()"


@pytest.fixture(scope="module")
def prepared(four: Notebook) -> Notebook:
    """A world of which cells hold handles."""
    four.run(f"%%distributed\n{HELD}")
    four.run(f"%%distributed\n{SETUP}")
    return four


def test_a_tutorial_runs_as_it_is_and_again(prepared: Notebook) -> None:
    for _ in range(2):
        told = "torch.equal(all_gather(model.module.weight)[0], model.module.weight), dist.is_initialized()"
        cell = prepared.run(f"%%distributed\npair, model = demo(rank, world_size)\n{told}")
        assert cell.text == "[0-3] (True, True)\n"
        assert prepared.run(GOOD).text == RIGHT
    text = prepared.run("%%distributed\nall_reduce(1, group=pair)", fails=True).error_text
    assert "This group does not exist any more: dist.destroy_process_group was called" in text


def test_a_loan_lasts_from_cell_to_cell_and_is_taken_again_by_a_cell_that_runs_again(prepared: Notebook) -> None:
    for _ in range(2):
        prepared.run(f"%%distributed\n{INIT}\nx = torch.ones(1)\ndist.all_reduce(x)\nassert x == 4")
    prepared.run("%%distributed\nmade = new_group([0, 1, 2, 3])\nassert all_reduce(1, group=made) == 4")
    hang = prepared.run("%%distributed\nif rank != 1: barrier()", fails=True)  # the groups are formed anew on the way
    assert "rank 1 has finished the cell" in hang.error_text
    assert prepared.run("%%distributed\nall_reduce(1, group=made)").text == RIGHT
    prepared.run(f"%%distributed\n{DESTROY}")
    assert (
        "This group does not exist any more"
        in prepared.run("%%distributed\nall_reduce(1, group=made)", fails=True).error_text
    )
    assert prepared.run(GOOD).text == RIGHT


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "'gloo'",
        "backend='cpu:gloo', timeout=__import__('datetime').timedelta(seconds=9)",
        "init_method='env://'",
        "'gloo', 'tcp://10.1.1.20:23456', rank=rank, world_size=4",
        "'gloo', init_method=f'tcp://10.1.1.20:23456?rank={rank}&world_size=4'",
        "init_method='file:///nowhere/file', rank=rank, world_size=world_size",
        "'gloo', store=dist.HashStore(), rank=rank, world_size=4",
    ],
)
def test_wherever_the_ranks_would_meet_they_have_met(prepared: Notebook, arguments: str) -> None:
    code = f"dist.init_process_group({arguments})\nx = torch.ones(1)\ndist.all_reduce(x)\n{DESTROY}\nint(x)"
    assert prepared.run(f"%%distributed\n{code}").text == RIGHT
    assert prepared.run(GOOD).text == RIGHT


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "dist.init_process_group('gloo', rank=rank % 2, world_size=2)",
            "of 2 ranks, but this world has 4 ranks: leave world_size and rank out, or start another world",
        ),
        (
            "os.environ['WORLD_SIZE'] = '1'\ntry: dist.init_process_group()\nfinally: os.environ['WORLD_SIZE'] = '4'",
            "This cell requests a process group of 1 rank, but this world has 4 ranks",
        ),
        (
            "dist.init_process_group('gloo', rank=3 - rank, world_size=4)",
            "requests rank 3 of the process group, but it runs on rank 0 of 4: leave world_size and",
        ),
        (
            "dist.init_process_group('nccl', rank=rank, world_size=4)",
            "This cell requests a process group with backend nccl, but this world has cpu:gloo",
        ),
        (
            "dist.init_process_group('gloo', 'tcp://localhost:1', world_size=4)",
            "init_process_group with init_method='tcp://localhost:1' needs rank and world_size",
        ),
        ("dist.init_process_group('gloo', rang=1)", "got an unexpected keyword argument 'rang'"),
    ],
)
def test_what_the_world_is_not_is_told_in_a_sentence(prepared: Notebook, code: str, said: str) -> None:
    assert said in prepared.run(f"%%distributed\n{code}", fails=True).error_text
    assert prepared.run(GOOD).text == RIGHT


def test_who_has_borrowed_nothing_destroys_and_has_the_next_world_made_anew(prepared: Notebook) -> None:
    ports = "len([one for one in connections('inet') if one.status == 'LISTEN'])"
    code = "import os, psutil\nthis = psutil.Process()\n"
    code += "connections = getattr(this, 'net_connections', this.connections)  # its name from psutil 6 on\n"
    code += f"os.environ['MASTER_PORT'] = '12355'\nbefore = {ports}\n{DESTROY}\n"
    code += f"told = dist.is_initialized()\n{{init}}\n(told, all_reduce(1), {ports} <= before)"
    for init in ("dist.init_process_group('gloo')", "dist.init_process_group()", INIT):
        assert prepared.run(f"%%distributed\n{code.format(init=init)}").text == "[0-3] (False, 4, True)\n"
        assert prepared.run("%%distributed\nall_reduce(1)").text == RIGHT
    prepared.run(f"%%distributed\n{HELD}")
    assert prepared.run(GOOD).text == RIGHT


def test_groups_get_names_again_that_groups_of_others_had(prepared: Notebook) -> None:
    prepared.run("%%distributed\nfor pair in ([0, 2], [1, 3], [0, 1], [2, 3]): new_group(pair)")
    again = f"{DESTROY}\ndist.init_process_group()\npairs = [new_group(pair) for pair in ([0, 1], [2, 3])]"
    assert prepared.run(f"%%distributed\n{again}\nall_reduce(rank, group=pairs[rank // 2])").lines == [
        "[0-1] 1",
        "[2-3] 5",
    ]
    prepared.run(f"%%distributed\n{HELD}")
    assert prepared.run(GOOD).text == RIGHT


def test_meshes_are_as_ever(prepared: Notebook) -> None:
    mesh = "from torch.distributed.device_mesh import init_device_mesh\nmesh = init_device_mesh('cpu', (2, 2))\n"
    code = f"{INIT}\n{mesh}assert mesh.get_group(0).size() == 2\n{DESTROY}\nmesh = init_device_mesh('cpu', (4,))"
    prepared.run(f"%%distributed\n{code}")
    assert prepared.run("%%distributed\nall_reduce(1, group=mesh)").text == RIGHT


TENSOR_PARALLEL = """\
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, Replicate, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
import torch, torch.distributed as dist
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
torch.nn.init.ones_(net[0].weight), torch.nn.init.ones_(net[2].weight)
parallelize_module(net, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
net(torch.ones(2, 4)).sum().backward()
part = distribute_tensor(torch.arange(16.).reshape(4, 4), mesh, [Shard(0), Shard(1)])
print((part @ part).full_tensor().sum().item(), part.redistribute(mesh, [Replicate(), Shard(0)]).to_local().shape)
dist.destroy_process_group()
"""


@pytest.mark.skipif(
    version("torch").startswith(("2.8.", "2.9.")),
    reason="DTensor of torch up to 2.9 remembers meshes whose groups were destroyed",
)
def test_meshes_and_dtensors_work_again_after_their_groups_were_destroyed(four: Notebook, tmp_path: Path) -> None:
    script = tmp_path / "tensor_parallel.py"
    script.write_text(TENSOR_PARALLEL)
    for _ in range(2):
        for cell in (f"%distributed run {script}", f"%%distributed\n{TENSOR_PARALLEL}"):
            assert four.run(cell).lines[-1] == "[0-3] 3920.0 torch.Size([2, 4])", cell
