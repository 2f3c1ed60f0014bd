"""Gradients through every collective, against the same done in one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nbcomm.errors import CollectiveError

from ...worlds import worlds_of_a_module  # noqa: F401  # the fixture `worlds`

FOLDS = {
    "sum": lambda rows: rows.sum(0),
    "mean": lambda rows: rows.mean(0),
    "min": lambda rows: rows.amin(0),
    "max": lambda rows: rows.amax(0),
    "product": lambda rows: rows.prod(0),
}
OPS = sorted(FOLDS)


def leaf(rank: int, size: int, seed: int = 0) -> torch.Tensor:
    """One row for each rank, all values different, so that no minimum is a tie."""
    chance = torch.Generator().manual_seed(100 * seed + rank)
    return torch.rand(size, 2, dtype=torch.float64, generator=chance).add_(0.5).requires_grad_()


def loss(parts: Any, rank: int) -> torch.Tensor:
    """Not linear, and another one on each rank."""
    flat = torch.cat([part.reshape(-1) for part in parts]) if isinstance(parts, (list, tuple)) else parts.reshape(-1)
    return ((rank + 1.0) * flat.sin() * torch.arange(1, flat.numel() + 1)).sum()


def compared(worlds: Any, size: int, collective: Any, model: Any) -> None:
    """Run ``collective(comm, x)`` on ranks, ``model(xs)`` here, and compare the gradients of the sum of all losses.

    The collective returns what the rank's loss is of; the model the same for all ranks, None where there is none.
    """

    def check(comm: Any) -> Any:
        x = leaf(comm.rank, comm.world_size)
        result = collective(comm, x * 1.5)  # not a leaf itself: the graph goes on on both sides
        if isinstance(result, torch.Tensor) and result.ndim == 0 and not result.detach().any():
            result.backward()  # a link
        else:
            loss(result, comm.rank).backward()
        return x.grad

    xs = [leaf(rank, size) for rank in range(size)]
    parts = model([x * 1.5 for x in xs])
    total = sum(loss(part, rank) for rank, part in enumerate(parts) if part is not None)
    if isinstance(total, torch.Tensor):
        total.backward()
    for grad, x in zip(worlds[size].run(check), xs, strict=True):
        expected = torch.zeros_like(x) if x.grad is None else x.grad
        assert torch.allclose(grad, expected)  # a zero is one, too: an optimizer leaves out what has none


SIZES = [1, 2, 3, 4]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("src", [0, -1])
def test_broadcast(worlds, size, src):
    src %= size
    compared(worlds, size, lambda comm, x: comm.broadcast(x, src, sync_grads=True), lambda xs: [xs[src]] * len(xs))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("listed", [True, False])
def test_scatter(worlds, size, listed):
    src = size - 1

    def on_rank(comm, x):
        return comm.scatter(list(x) if listed else x, src, sync_grads=True)

    compared(worlds, size, on_rank, lambda xs: list(xs[src]))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mode", ["stack", "cat", "list"])
def test_gather(worlds, size, mode):
    dst = size // 2

    def model(xs):
        joined = {"stack": torch.stack, "cat": torch.cat, "list": list}[mode](xs)
        return [joined if rank == dst else None for rank in range(len(xs))]

    compared(worlds, size, lambda comm, x: comm.gather(x, dst, mode, sync_grads=True), model)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("op", OPS)
def test_reduce(worlds, size, op):
    dst = size - 1

    def model(xs):
        folded = FOLDS[op](torch.stack(xs))
        return [folded if rank == dst else None for rank in range(len(xs))]

    compared(worlds, size, lambda comm, x: comm.reduce(x, op, dst, sync_grads=True), model)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("listed", [True, False])
def test_reduce_scatter(worlds, size, op, listed):
    def on_rank(comm, x):
        return comm.reduce_scatter(list(x) if listed else x, op, sync_grads=True)

    def model(xs):
        folded = FOLDS[op](torch.stack(xs))
        return list(folded) if listed else list(folded.split(1))

    compared(worlds, size, on_rank, model)


@pytest.mark.parametrize("size", SIZES)
def test_all_to_all(worlds, size):
    compared(
        worlds,
        size,
        lambda comm, x: comm.all_to_all(list(x), sync_grads=True),
        lambda xs: [[x[rank] for x in xs] for rank in range(len(xs))],
    )


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("exclusive", [False, True])
def test_scan(worlds, size, op, exclusive):
    def model(xs):
        counts = [rank + (not exclusive) for rank in range(len(xs))]
        return [FOLDS[op](torch.stack(xs[:count])) if count else None for count in counts]

    def on_rank(comm, x):
        result = comm.scan(x, op, exclusive, sync_grads=True)
        if exclusive and comm.rank == 0:  # it depends on nobody, but its backward is everybody's
            return torch.where(result.isfinite(), result, 0).sum() * 0
        return result

    compared(worlds, size, on_rank, model)


def test_nested_data_mixes_what_has_gradients_and_what_has_not(worlds):
    def check(comm):
        w = torch.tensor([1.0 + comm.rank], requires_grad=True)
        data = {"w": w * 3, "fixed": torch.ones(2), "name": f"rank {comm.rank}"}
        got = comm.broadcast(data if comm.rank == 1 else None, 1, sync_grads=True)
        items = [{"w": w * (place + 1), "n": place} for place in range(comm.world_size)] if comm.rank == 0 else None
        item = comm.scatter(items, sync_grads=True)
        rows = comm.all_to_all([(w * place, place) for place in range(comm.world_size)], sync_grads=True)
        (got["w"].sum() + item["w"].sum() + sum(row[0].sum() for row in rows)).backward()
        return got["fixed"].requires_grad, got["name"], item["n"], [row[1] for row in rows], w.grad.tolist()

    results = worlds[3].run(check)
    to_all = 0 + 1 + 2
    assert [result[:4] for result in results] == [(False, "rank 1", rank, [rank] * 3) for rank in range(3)]
    assert [result[4] for result in results] == [[1 + 2 + 3 + to_all], [9.0 + to_all], [to_all]]


def test_what_a_receiver_passes_gets_the_gradient_that_torch_gives(worlds):
    def check(comm):
        from torch.distributed.nn.functional import broadcast, scatter

        steps = []
        for ours in (True, False):
            w, rows = torch.ones(2, requires_grad=True), torch.ones(comm.world_size, 2, requires_grad=True)
            optimizer = torch.optim.SGD([w, rows], lr=0.1, weight_decay=0.5)
            if ours:
                got, item = comm.broadcast(w * 2, sync_grads=True), comm.scatter([*(rows * 3)], sync_grads=True)
            else:
                got, item = broadcast(w * 2, 0), scatter([*(rows * 3)], 0)
            (got.sum() + item.sum()).backward()
            optimizer.step()
            steps.append([each.tolist() for each in (w.grad, rows.grad, w, rows)])
        nested = {"w": torch.ones(1, requires_grad=True), "none": torch.ones(1)}
        comm.broadcast(nested if comm.rank else {"w": nested["w"]}, sync_grads=True)["w"].sum().backward()
        return steps, nested["w"].grad.item()

    for rank, ((ours, torchs), other) in enumerate(worlds[2].run(check)):
        assert ours == torchs
        assert other == (0 if rank else 2)


def test_gradients_beside_objects_of_unequal_size(worlds):
    def check(comm):
        w = torch.ones(1, requires_grad=True)
        data = {"w": w * (comm.rank + 1), "name": "x" * 1000 * (comm.rank + 1)}
        got = comm.gather(data, 1, sync_grads=True)
        (got if comm.rank != 1 else sum(got["w"]).sum()).backward()
        # its backward gathers gradients of unequal length
        items = [torch.ones(500 * place, requires_grad=True) for place in range(3)] if comm.rank == 0 else None
        comm.scatter(items, sync_grads=True).sum().backward()
        sums = [] if items is None else [item.grad.sum().item() for item in items]
        return w.grad.tolist(), [] if comm.rank != 1 else [len(name) for name in got["name"]], sums

    assert worlds[3].run(check) == [([1.0], [], [0.0, 500.0, 1000.0]), ([2.0], [1000, 2000, 3000], []), ([3.0], [], [])]


def test_without_anything_that_requires_grad_the_results_are_plain(worlds):
    def check(comm):
        x = torch.ones(comm.world_size, 2)
        return [
            comm.broadcast(x, sync_grads=True).requires_grad,
            comm.scatter(x, sync_grads=True).requires_grad,
            comm.gather(x, sync_grads=True) is None or comm.rank == 0,
            comm.reduce(x, sync_grads=True) is None or comm.rank == 0,
            comm.reduce_scatter(x, sync_grads=True).requires_grad,
            any(part.requires_grad for part in comm.all_to_all(x, sync_grads=True)),
            comm.scan(x, sync_grads=True).requires_grad,
        ]

    assert worlds[2].run(check) == [[False, False, True, True, False, False, False]] * 2


@pytest.mark.parametrize("name", ["gather", "reduce", "reduce_scatter", "scan", "all_to_all", "all_reduce"])
def test_ranks_that_disagree_are_told(worlds, name):
    def check(comm, name):
        x = torch.ones(2, 2, requires_grad=comm.rank == 0)
        return getattr(comm, name)(list(x) if name == "all_to_all" else x, sync_grads=True)

    for result in worlds[2].run(check, name, fails=True):
        assert result.kind is CollectiveError
        assert "grad" in result.text
        assert "rank 1" in result.text


def test_items_that_disagree_are_told(worlds):
    def check(comm):
        return comm.scatter([torch.ones(1, requires_grad=place == 0) for place in range(2)], sync_grads=True)

    for result in worlds[2].run(check, fails=True):
        assert result.kind is CollectiveError
        assert "in every item" in result.text


def test_a_half_precision_gradient_keeps_its_dtype(worlds):
    def check(comm):
        x = torch.ones(2, dtype=torch.bfloat16, requires_grad=True)
        comm.broadcast(x, sync_grads=True).sum().backward()
        return x.grad

    assert worlds[3].run(check)[0].tolist() == [3.0, 3.0]
    assert worlds[3].run(check)[0].dtype == torch.bfloat16
