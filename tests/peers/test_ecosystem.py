"""Other libraries run unchanged in cells: one small real training each, in a real notebook, and its loss goes down."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import pytest

from ..world.notebook import Notebook, with_ranks

BEGIN = """
import torch
torch.manual_seed(0)
X = torch.randn(64, 8)
Y = (X @ torch.arange(8.0) / 8).tanh().unsqueeze(1)
def net():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
mine = slice(rank, None, world_size)
"""

END = """
everybody = [None] * world_size
dist.all_gather_object(everybody, [round(float(loss), 5) for loss in losses])
assert all(math.isfinite(loss) for own in everybody for loss in own)
first, last = (sum(own[place] for own in everybody) for place in (0, -1))
print("down" if last < 0.7 * first else f"not down: {first} {last}")
"""

TRAININGS = {
    "fabric": """
from lightning_fabric import Fabric
fabric = Fabric(accelerator="cpu", devices=world_size, strategy="ddp")
fabric.launch()
model = net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
model, optimizer = fabric.setup(model, optimizer)
loader = fabric.setup_dataloaders(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=4))
losses = []
for epoch in range(10):
    for x, y in loader:
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        fabric.backward(loss)
        optimizer.step()
    losses.append(fabric.all_reduce(loss.detach()))
del fabric
""",
    "nbcomm's fabric": """
model = net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
fabric.launch()
model, optimizer = fabric.setup(model, optimizer)
loader = fabric.setup_dataloaders(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=4))
losses = []
for epoch in range(10):
    for x, y in loader:
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        fabric.backward(loss)
        optimizer.step()
    losses.append(fabric.all_reduce(loss.detach()))
""",
    "ignite": """
import ignite.distributed as idist
from ignite.engine import Engine, Events
model = idist.auto_model(net())
optimizer = idist.auto_optim(torch.optim.Adam(model.parameters(), lr=0.03))
loader = idist.auto_dataloader(torch.utils.data.TensorDataset(X, Y), batch_size=16)
def step(engine, batch):
    x, y = batch
    optimizer.zero_grad()
    loss = (model(x) - y).pow(2).mean()
    loss.backward()
    optimizer.step()
    return loss.item()
trainer = Engine(step)
losses = []
@trainer.on(Events.EPOCH_COMPLETED)
def keep(engine):
    losses.append(idist.all_reduce(engine.state.output) / world_size)
_ = trainer.run(loader, max_epochs=10)
""",
    "accelerate": """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
model = net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
losses = []
for epoch in range(10):
    for x, y in loader:
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        accelerator.backward(loss)
        optimizer.step()
    losses.append(accelerator.gather(loss.detach().unsqueeze(0)).mean())
assert accelerator.gather_for_metrics(torch.ones(1)).shape[0] == world_size
""",
    "ddp": """
model = torch.nn.parallel.DistributedDataParallel(net())
optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
losses = []
for epoch in range(30):
    optimizer.zero_grad()
    loss = (model(X[mine]) - Y[mine]).pow(2).mean()
    loss.backward()
    optimizer.step()
    losses.append(all_reduce(loss.detach(), "mean"))
weights = all_gather(model.module[0].weight.detach())
assert all(torch.equal(row, weights[0]) for row in weights)
""",
    "torch.compile": """
model = torch.compile(torch.nn.parallel.DistributedDataParallel(net()), backend="aot_eager")
optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
losses = []
for epoch in range(30):
    optimizer.zero_grad()
    loss = (model(X[mine]) - Y[mine]).pow(2).mean()
    loss.backward()
    optimizer.step()
    losses.append(all_reduce(loss.detach(), "mean"))
""",
    "fsdp2": """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
mesh = init_device_mesh("cpu", (world_size,))
model = net()
for layer in (model[0], model[2]): fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
losses = []
for epoch in range(30):
    optimizer.zero_grad()
    loss = (model(X[mine]) - Y[mine]).pow(2).mean()
    loss.backward()
    optimizer.step()
    losses.append(all_reduce(loss.detach(), "mean"))
""",
    "tensor parallel": """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
mesh = init_device_mesh("cpu", (world_size,))
model = parallelize_module(net(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
losses = []
for epoch in range(30):
    optimizer.zero_grad()
    loss = (model(X) - Y).pow(2).mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
assert model[0].weight.to_local().shape[0] == 16 // world_size
""",
    "dtensor and a 2-d mesh": """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
mesh = init_device_mesh("cpu", (2, world_size // 2), mesh_dim_names=("dp", "tp"))
torch.manual_seed(2)
w = distribute_tensor(torch.randn(8, 1), mesh, [Replicate(), Shard(0)]).requires_grad_()
x = distribute_tensor(X, mesh, [Shard(0), Replicate()])
y = distribute_tensor(Y, mesh, [Shard(0), Replicate()])
losses = []
for epoch in range(40):
    loss = ((x @ w).tanh() - y).pow(2).mean()
    loss.backward()
    with torch.no_grad():
        w -= 0.3 * w.grad
    w.grad = None
    losses.append(loss.full_tensor().detach())
assert all_gather(rank, group=mesh["tp"])[0] % (world_size // 2) == 0
""",
    "checkpoint": """
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
mesh = init_device_mesh("cpu", (world_size,))
model, losses = fully_shard(net(), mesh=mesh), []
optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
def train():
    for epoch in range(15):
        optimizer.zero_grad()
        loss = (model(X[mine]) - Y[mine]).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(all_reduce(loss.detach(), "mean"))
train()
dcp.save({"model": get_model_state_dict(model)}, checkpoint_id="saved")
model = fully_shard(net(), mesh=mesh)
state = {"model": get_model_state_dict(model)}
dcp.load(state, checkpoint_id="saved")
set_model_state_dict(model, state["model"])
optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
train()
assert losses[15] < 0.9 * losses[0]  # it goes on where it was
""",
}


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A notebook with four ranks."""
    with with_ranks(tmp_path_factory.mktemp("trainings")) as opened:
        yield opened


@pytest.mark.timeout(300)
@pytest.mark.parametrize("library", TRAININGS)
def test_a_training_runs_and_its_loss_goes_down(notebook: Notebook, library: str) -> None:
    code = f"%%distributed\nimport math, warnings\nwarnings.simplefilter('ignore')\n{BEGIN}{TRAININGS[library]}{END}"
    cell = notebook.run(textwrap.dedent(code), timeout=240)
    assert cell.stream("stdout").splitlines()[-1] == "[0-3] down"


def test_after_all_of_them_the_world_is_whole(notebook: Notebook) -> None:
    assert notebook.run("%%distributed\nall_reduce(1)").text == "[0-3] 4\n"


def test_a_compiled_model_is_as_good_behind_a_hang(notebook: Notebook) -> None:
    train = (
        "model = torch.compile(torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1)), backend='aot_eager')\n"
        "def train():\n    model.zero_grad()\n    model(torch.full((1, 2), float(rank))).sum().backward()\n"
        "    return [parameter.grad.mean().item() for parameter in model.parameters()]"
    )
    notebook.run(f"%%distributed\n{train}\ntrain()")  # torch warns once in a process
    assert notebook.run("%%distributed\ntrain(), train()").text == "[0-3] ([1.5, 1.0], [1.5, 1.0])\n"
    for hang in ("barrier()", "train()"):
        assert "HangError" in notebook.run(f"%%distributed\nif rank: {hang}", fails=True).error_text
        assert notebook.run("%%distributed\ntrain(), train()").text == "[0-3] ([1.5, 1.0], [1.5, 1.0])\n"


def test_compiled_functions_may_use_the_names_that_cells_have(notebook: Notebook) -> None:
    code = """\
        %%distributed
        @torch.compile(backend="eager")
        def compiled(x):
            dist.all_reduce(x)
            return torch.relu(x).to(device) * rank + world_size + comm.rank + all_reduce(1)
        compiled(torch.ones(1)).item()
        """
    cell = notebook.run(textwrap.dedent(code))
    assert [line for line in cell.lines if "] " in line and line.endswith(".0")] == [
        f"[{rank}] {4.0 * rank + 4 + rank + 4}" for rank in range(4)
    ]


def test_the_environment_is_torchruns(notebook: Notebook) -> None:
    names = [
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "NODE_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
    ]
    cell = notebook.run(
        f"%%distributed\nimport os, subprocess, sys\nnames = {names}\n"
        "code = f'import os; print([os.environ[name] for name in {names}])'\n"
        "print(subprocess.run([sys.executable, '-c', code], capture_output=True, text=True).stdout.strip())\n"
        "all(os.environ[name] for name in [*names, 'MASTER_ADDR', 'MASTER_PORT'])"
    )
    for rank in range(4):
        assert f"[{rank}] ['{rank}', '4', '{rank}', '4', '0', '0', '127.0.0.1', '" in cell.text
    assert "[0-3] True" in cell.text
