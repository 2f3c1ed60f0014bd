"""What a rank tells of its memory, its samples and its shards: here without a world."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    TensorDataset,
)

from nbcomm.errors import TransferError
from nbcomm.measures import memory, named, samples, shards


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The variables of the cells."""
    made: dict[str, Any] = {}
    monkeypatch.setattr(named, "variables", lambda: made)
    monkeypatch.setattr(memory, "variables", lambda: made)
    return made


def told(**kinds: int) -> dict[str, int]:
    return {**dict.fromkeys(memory.KINDS, 0), **{kind.replace("_", " "): size for kind, size in kinds.items()}}


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(8, 4, bias=False), nn.BatchNorm1d(4, affine=False))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_memory_is_told_by_what_it_is_for(cells: dict[str, Any]) -> None:
    cells["model"], cells["optimizer"] = trained()
    assert memory.by_kind(["model", "optimizer"]) == told(weights=128, gradients=128, optimizer=128, buffers=40)
    cells["same"] = cells["model"][0].weight.data
    assert memory.by_kind(["model", "same"])["other tensors"] == 0, "what is shared counts once"


def test_activations_are_what_a_graph_keeps_until_its_backward(cells: dict[str, Any]) -> None:
    model = nn.Sequential(nn.Linear(8, 4, bias=False), nn.Sigmoid())
    cells.update(model=model, x=torch.ones(2, 8))
    cells["loss"] = model(cells["x"]).sum()
    # x is kept too, for the weight's gradient; and the sigmoid's result, and the sum.
    assert memory.by_kind(["model", "loss"]) == told(weights=128, activations=64 + 32 + 4)
    cells["loss"].backward()
    assert memory.by_kind(["model", "loss"]) == told(weights=128, gradients=128, activations=4)


def test_a_function_of_ones_own_keeps_activations_too(cells: dict[str, Any]) -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(torch.zeros(100))
            return 2 * x

    cells["y"] = Twice.apply(torch.ones(5, requires_grad=True))
    assert memory.by_kind(["y"])["activations"] == 400 + 20


def test_of_all_variables_those_count_that_hold_tensors(cells: dict[str, Any]) -> None:
    cells.update(x=torch.ones(4), _hidden=torch.ones(100), number=3, text="no", sparse=torch.eye(3).to_sparse())
    assert memory.by_kind([]) == told(other_tensors=16)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("text", "text is no module, optimizer or tensor, but str."),
        ("gone", "gone cannot be read: NameError: name 'gone' is not defined."),
        ("text.nothing", "AttributeError"),
    ],
)
def test_what_has_no_memory_to_draw_is_refused_in_a_sentence(cells: dict[str, Any], name: str, said: str) -> None:
    cells["text"] = "no"
    with pytest.raises(TransferError) as caught:
        memory.by_kind([name])
    assert said in str(caught.value)


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return itertools.count()


DATA = TensorDataset(torch.arange(10.0))


@pytest.mark.parametrize(
    "make",
    [
        lambda: DistributedSampler(DATA, 4, 1, shuffle=False),
        lambda: DataLoader(DATA, 2, sampler=DistributedSampler(DATA, 4, 1, shuffle=False)),
        lambda: BatchSampler(DistributedSampler(DATA, 4, 1, shuffle=False), 2, drop_last=False),
        lambda: [[1, 5, 9]] * 2,
        lambda: [1, 5, 9],
        lambda: lambda epoch: range(1, 10, 4),
        lambda: torch.tensor([1, 5, 9]),
    ],
)
def test_whatever_gives_samples_tells_them(cells: dict[str, Any], make: Any) -> None:
    cells["loader"] = make()
    assert samples.epochs("loader", 2, 100) == [[1, 5, 9]] * 2


def test_each_epoch_is_asked_for_and_the_samplers_own_stays(cells: dict[str, Any]) -> None:
    sampler = cells["sampler"] = DistributedSampler(DATA, 4, 1, seed=3)
    sampler.set_epoch(7)
    found = samples.epochs("sampler", 3, 100)
    assert sampler.epoch == 7
    for epoch, own in enumerate(found):
        sampler.set_epoch(epoch)
        assert own == [*sampler]
    assert len({*map(tuple, found)}) > 1


def test_to_look_takes_no_random_numbers(cells: dict[str, Any]) -> None:
    cells["sampler"] = RandomSampler(DATA)
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    assert sorted(samples.epochs("sampler", 1, 100)[0]) == [*range(10)]
    assert torch.rand(1) == expected


def test_of_samples_without_end_the_first_are_told(cells: dict[str, Any]) -> None:
    cells["loader"] = itertools.count
    assert samples.epochs("loader", 1, 3) == [[0, 1, 2]]


@pytest.mark.parametrize("value", [3, ["a", "b"], [[0]], DataLoader(Endless())])
def test_what_gives_no_samples_is_refused_in_a_sentence(cells: dict[str, Any], value: Any) -> None:
    cells["loader"] = value
    with pytest.raises(TransferError, match="loader gives no numbers of samples"):
        samples.epochs("loader", 2, 100)


def test_a_plain_tensor_is_whole(cells: dict[str, Any]) -> None:
    cells.update(w=torch.ones(3, 4, 5), b=torch.ones(6), s=torch.tensor(1.0))
    (w,) = shards.parts("w")
    assert w == {
        "name": "w",
        "shape": [3, 4, 5],
        "whole": (3, 4),
        "start": (0, 0),
        "size": (3, 4),
        "how": "",
        "more": 0,
    }
    assert shards.parts("b")[0]["size"] == (6, 1)
    assert shards.parts("s")[0]["size"] == (1, 1)


def test_of_a_module_the_first_parameters_are_told(cells: dict[str, Any]) -> None:
    cells["model"] = nn.Sequential(*[nn.Linear(2, 2) for _ in range(5)])
    found = shards.parts("model")
    assert [each["name"] for each in found][:3] == ["model.0.weight", "model.0.bias", "model.1.weight"]
    assert (len(found), found[0]["more"]) == (8, 2)


def test_what_has_no_shards_is_refused_in_a_sentence(cells: dict[str, Any]) -> None:
    cells["text"] = "no"
    with pytest.raises(TransferError, match="text is no tensor or module, but str"):
        shards.parts("text")
