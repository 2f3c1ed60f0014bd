"""Training by fabric on real ranks: what is called past forward, and what is saved."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils import data

from nbcomm.comm import Communicator
from nbcomm.fabric import Fabric

from ..worlds import worlds_of_a_module  # noqa: F401  # the fixture `worlds`


def net() -> Any:
    """A model as Lightning writes them. In a function, so that it is pickled whole for the ranks."""

    class Net(torch.nn.Module):
        scale = 1.0

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1, bias=False)
            self.seen = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) * self.scale

        def training_step(self, x: torch.Tensor, *, fails: bool = False) -> torch.Tensor:
            self.seen += 1
            if fails:
                raise ZeroDivisionError
            return self(x).sum()

        def score(self, x: torch.Tensor) -> torch.Tensor:
            return self(x).sum()

        def count(self) -> int:
            return self.seen

    return Net()


def test_marked_methods_synchronize_gradients_and_attributes_reach_the_module(worlds):
    def check(comm):
        fabric = Fabric(comm)
        torch.manual_seed(0)
        plain = net()
        model = fabric.setup(plain)
        x = torch.full((1, 2), float(comm.rank + 1))
        found = []

        def grad_of(loss: torch.Tensor) -> float:
            fabric.backward(loss)
            grad = plain.layer.weight.grad[0, 0].item()
            plain.layer.weight.grad = None
            return grad

        found.append(grad_of(model.training_step(x)))
        with pytest.raises(ZeroDivisionError):
            model.training_step(x, fails=True)
        assert "forward" not in vars(plain)
        found.append(grad_of(model(x).sum()))
        with pytest.raises(RuntimeError, match=r"Net.score\(\) bypasses DistributedDataParallel.*mark_for"):
            model.score(x)
        with torch.no_grad():
            model.score(x)
        assert not plain.layer._forward_pre_hooks
        model.mark_forward_method(model.score)
        found.append(grad_of(model.score(x)))
        model.scale, model.new = 10.0, 3  # the module's own, and one that nobody has
        assert (plain.scale, plain.new, "scale" in vars(model), model.count()) == (10.0, 3, False, 2)
        found.append(grad_of(model(x).sum()))
        for pause in (comm.no_backward_sync, fabric.no_backward_sync):
            with pause(model):
                found.append(grad_of(model.training_step(x)))
        return found

    for rank, found in enumerate(worlds[2].run(check)):
        alone = 10.0 * (rank + 1)
        assert found == [1.5, 1.5, 1.5, 15.0, alone, alone]


def test_what_cannot_be_marked_is_refused():
    model = Fabric(Communicator(rank=0, world_size=1)).setup(net())
    for method, kind in [
        (3, TypeError),
        ("forward", ValueError),
        ("missing", AttributeError),
        ("seen", AttributeError),
    ]:
        with pytest.raises(kind, match="mark"):
            model.mark_forward_method(method)
    assert model.score(torch.ones(1, 2)).requires_grad  # alone it needs no mark


def test_the_mode_and_what_is_set_are_those_of_the_module():
    plain = net()
    model = Fabric(Communicator(rank=0, world_size=1)).setup(plain)
    model.training = False
    assert (plain.training, model.training) == (False, False)
    model.train()
    assert (plain.training, plain.layer.training) == (True, True)
    model.layer = torch.nn.Linear(2, 3)
    assert plain.layer.out_features == 3
    assert sorted(name for name, _ in model.named_parameters()) == [
        "forward_module.layer.bias",
        "forward_module.layer.weight",
    ]


def test_optimizers_of_one_module_are_clipped_apart():
    fabric = Fabric(Communicator(rank=0, world_size=1))
    model = torch.nn.ModuleDict({name: torch.nn.Linear(1, 1, bias=False) for name in "ab"})
    first, second = (torch.optim.SGD(model[name].parameters(), 0.1) for name in "ab")
    for name, size in (("a", 3.0), ("b", 4.0)):
        model[name].weight.grad = torch.full((1, 1), size)
    assert fabric.clip_gradients(model, first, max_norm=1.0) == 3.0
    fabric.clip_gradients(model, second, clip_val=2.0)
    assert [round(model[name].weight.grad.item(), 3) for name in "ab"] == [1.0, 2.0]


def test_a_scheduler_comes_back_behind_the_optimizers():
    fabric = Fabric(Communicator(rank=0, world_size=1))
    plain = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(plain.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    model, *others = fabric.setup(plain, optimizer, scheduler=scheduler)
    assert model.module is plain
    assert others == [optimizer, scheduler]


def test_whatever_has_a_state_gets_it_back(worlds, tmp_path):
    def check(comm, path):
        fabric = Fabric(comm)

        def made(rate: float) -> dict[str, Any]:
            model = torch.nn.Linear(1, 1)
            optimizer = torch.optim.SGD(model.parameters(), rate)
            scaler = torch.amp.GradScaler("cpu", init_scale=rate)
            return {
                "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1),
                "scaler": scaler,
                "kind": torch.nn.Linear,
                "n": 1,
            }

        before, after = made(0.5), made(0.25)
        before["scheduler"].optimizer.step()
        before["scheduler"].step()
        fabric.save(path, before)
        scheduler = after["scheduler"]
        rest = fabric.load(path, after, weights_only=False)
        return (
            rest,
            after["scheduler"] is scheduler,
            scheduler.last_epoch,
            after["scaler"].state_dict().get("scale"),
            after["kind"] is torch.nn.Linear,
        )

    assert worlds[2].run(check, str(tmp_path / "state.pt")) == [({}, True, 1, 0.5, True)] * 2


def test_shares_are_of_one_order_whatever_the_ranks_seeds(worlds):
    def check(comm):
        fabric = Fabric(comm)
        torch.manual_seed(comm.rank)  # as for dropout that differs
        items = range(12)
        batches = data.BatchSampler(data.RandomSampler(items), 3, drop_last=False)
        dealt = data.DistributedSampler(items, comm.world_size, comm.rank, shuffle=True)
        loaders = [
            data.DataLoader(items, batch_size=3, shuffle=True),
            data.DataLoader(items, batch_sampler=batches),
            data.DataLoader(items, batch_sampler=data.BatchSampler(dealt, 3, drop_last=False)),
            data.DataLoader(items, batch_size=None, shuffle=True),
        ]
        found = []
        for loader in loaders:
            mine = fabric.setup_dataloaders(loader)
            found.append([[batch.tolist() if loader.batch_sampler else batch for batch in mine] for _ in range(2)])
        return found

    first, second = worlds[2].run(check)
    for place, (mine, other) in enumerate(zip(first, second, strict=True)):
        for epoch in range(2):
            batches = mine[epoch] + other[epoch]
            dealt = batches if place == 3 else [n for batch in batches for n in batch]
            assert sorted(dealt) == list(range(12)), place
            assert place == 3 or [len(batch) for batch in batches] == [3, 3, 3, 3]
        assert mine[0] != mine[1]
