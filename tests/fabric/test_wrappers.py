"""What fabric.setup and fabric.setup_dataloaders return, without a world."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils import data

from nbcomm.comm import Communicator
from nbcomm.fabric import Fabric, wrappers


@pytest.fixture
def fabric() -> Fabric:
    return Fabric(Communicator(rank=0, world_size=1))


class Named(torch.nn.Linear):
    """A module with something of its own."""

    classes = ("cat", "dog")

    def guess(self) -> str:
        return self.classes[0]


def test_a_module_that_was_set_up_is_like_the_one_it_was_made_of(fabric: Fabric) -> None:
    plain = Named(2, 1)
    model, optimizer = fabric.setup(plain, torch.optim.SGD(plain.parameters(), lr=0.1))
    assert model.guess() == "cat"
    assert model.module is plain
    assert list(model.state_dict()) == ["weight", "bias"]
    assert [id(p) for p in model.parameters()] == [id(p) for p in plain.parameters()]
    before = plain.weight.detach().clone()
    fabric.backward(model(torch.ones(1, 2)).sum())
    optimizer.step()
    assert torch.allclose(plain.weight, before - 0.1)
    other = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    model.load_state_dict(other)
    assert not plain.weight.any()
    model.eval()
    assert not plain.training
    with pytest.raises(AttributeError, match="missing"):
        model.missing  # noqa: B018
    with pytest.raises(ValueError, match="has been set up already"):
        fabric.setup(model)


def test_gradients_are_paused_only_for_what_was_set_up(fabric: Fabric) -> None:
    with pytest.raises(TypeError, match="set up the model first"):
        fabric.no_backward_sync(torch.nn.Linear(1, 1))
    with fabric.no_backward_sync(fabric.setup(torch.nn.Linear(1, 1))):
        pass


def test_clipping_takes_one_of_two_bounds(fabric: Fabric) -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (model(torch.tensor([[3.0, 4.0]])).sum()).backward()
    assert fabric.clip_gradients(model, optimizer, max_norm=1.0) == pytest.approx(5.0)
    assert model.weight.grad.norm() == pytest.approx(1.0, abs=1e-4)
    assert fabric.clip_gradients(model, optimizer, clip_val=0.1) is None
    assert model.weight.grad.abs().max() <= 0.1
    for bounds in ({}, {"clip_val": 1.0, "max_norm": 1.0}):
        with pytest.raises(ValueError, match="one of"):
            fabric.clip_gradients(model, optimizer, **bounds)


def test_modules_and_tensors_are_made_where_the_rank_computes() -> None:
    fabric = Fabric(Communicator(rank=0, world_size=1, device=torch.device("meta")))
    with fabric.init_module(), fabric.autocast():
        assert torch.nn.Linear(1, 1).weight.is_meta
    with fabric.init_tensor():
        assert torch.zeros(1).is_meta
    torch.manual_seed(0)
    before = torch.get_rng_state()
    with Fabric(Communicator(rank=0, world_size=1)).init_module(empty_init=True):
        torch.nn.Linear(4, 4)
    assert torch.equal(torch.get_rng_state(), before)  # nothing was drawn


def test_shares_of_dataloaders() -> None:
    plain = data.DataLoader(range(10), batch_size=2, drop_last=True, num_workers=0)
    mine = wrappers.shared(plain, 3, 1)
    assert (mine.batch_size, mine.drop_last) == (2, True)
    assert list(mine.sampler) == [1, 4, 7, 0]
    assert wrappers.shared(plain, 1, 0) is plain
    assert wrappers.shared(mine, 3, 1) is mine
    assert isinstance(wrappers.shared(data.DataLoader(range(4), shuffle=True), 2, 0).sampler, data.DistributedSampler)


class Mine(data.DataLoader):  # type: ignore[type-arg]
    """A dataloader with an argument of its own."""

    def __init__(self, dataset: Any, scale: int, **kwargs: Any) -> None:
        super().__init__(dataset, **kwargs)
        self.scale = scale

    def __iter__(self) -> Any:
        return (batch * self.scale for batch in super().__iter__())


def test_a_shared_dataloader_keeps_its_class_its_options_and_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    plain = Mine(range(8), 10, batch_size=2, shuffle=True, num_workers=1, persistent_workers=True, pin_memory=False)
    next(iter(plain))
    fabric = Fabric(Communicator(rank=0, world_size=1))
    shares = [wrappers.shared(plain, 2, rank) for rank in range(2)]
    assert all(type(share) is Mine and share.num_workers == 1 and share.persistent_workers for share in shares)
    loaders = [fabric.setup_dataloaders(share) for share in shares]
    epochs = [[[n for batch in loader for n in batch.tolist()] for loader in loaders] for _ in range(2)]
    for mine, other in epochs:
        assert sorted(mine + other) == list(range(0, 80, 10))
    assert epochs[0] != epochs[1]
    workers = [loader._loader._iterator._workers[0].pid for loader in (*loaders, fabric.setup_dataloaders(plain))]
    assert len(set(workers)) == 3  # each its own
    assert type(plain.sampler) is data.RandomSampler  # as it was


class Stream(data.IterableDataset):  # type: ignore[type-arg]
    """It has no length, so it cannot be shared."""

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(range(3))


def test_what_deals_by_itself_is_left_alone_or_refused(fabric: Fabric) -> None:
    stream = data.DataLoader(Stream())
    assert wrappers.shared(stream, 2, 0) is stream
    weighted = data.DataLoader(range(4), sampler=data.WeightedRandomSampler([1, 1, 1, 1], 4))
    with pytest.raises(TypeError, match="its own sampler \\(WeightedRandomSampler\\)"):
        wrappers.shared(weighted, 2, 0)

    class Batches(data.BatchSampler):
        pass

    batched = data.DataLoader(range(4), batch_sampler=Batches(data.SequentialSampler(range(4)), 2, drop_last=False))
    with pytest.raises(TypeError, match="that has its own batch sampler"):
        wrappers.shared(batched, 2, 0)
    first, second = fabric.setup_dataloaders(weighted, batched, use_distributed_sampler=False)
    assert (len(first), len(second)) == (4, 2)
    assert first.dataset == range(4)


def test_launching_calls_the_function_with_the_fabric(fabric: Fabric) -> None:
    assert fabric.launch() is None
    assert fabric.launch(lambda given, x, y=0: (given is fabric, x + y), 1, y=2) == (True, 3)


def test_a_seed_makes_the_same_numbers(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    import random

    import numpy as np

    monkeypatch.setenv("PL_GLOBAL_SEED", "5")

    def numbers() -> tuple[float, float, float]:
        return random.random(), float(np.random.random()), torch.rand(1).item()  # noqa: NPY002, S311

    assert fabric.seed_everything(verbose=False) == 5
    first = numbers()
    fabric.seed_everything(5, verbose=False)
    assert numbers() == first
