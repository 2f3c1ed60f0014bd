"""The plans against torch: every collective, every reduction, 2 to 16 ranks; and what they refuse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import nbcomm
from nbcomm.errors import CollectiveError, OpError
from nbcomm.pictures.plan import NAMES, Plan, made_up, plan
from nbcomm.pictures.svg import draw

OPS = ["sum", "mean", "min", "max", "product", "band", "bor", "bxor"]
SIZES = range(2, 17)

# Torch's own functions, on a group of the first n of 16 ranks.
CODE = """
import itertools

def value(rank, item=0):
    return [(rank * 7 + item * 5 + i * 3) % 11 + 1 for i in range(2)]

REDUCE = {"sum": dist.ReduceOp.SUM, "mean": dist.ReduceOp.SUM, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX,
          "product": dist.ReduceOp.PRODUCT, "band": dist.ReduceOp.BAND, "bor": dist.ReduceOp.BOR,
          "bxor": dist.ReduceOp.BXOR}

def torch_says(n, group):
    own, last = torch.tensor(value(rank)), n - 1
    rows = [torch.tensor(value(rank, item)) for item in range(n)]
    told = {}
    for op, known in REDUCE.items():
        scale = n if op == "mean" else 1
        out = own.clone()
        dist.all_reduce(out, known, group)
        told["all_reduce", op] = (out / scale if op == "mean" else out).tolist()
        out = own.clone()
        dist.reduce(out, last, known, group)
        if rank == last:
            told["reduce", op] = (out / scale if op == "mean" else out).tolist()
        if op not in ("band", "bor", "bxor"):
            out = torch.empty_like(own)
            dist.reduce_scatter(out, rows, known, group)
            told["reduce_scatter", op] = (out / scale if op == "mean" else out).tolist()
    out = own.clone()
    dist.broadcast(out, last, group)
    told["broadcast"] = out.tolist()
    out = torch.empty_like(own)
    dist.scatter(out, rows if rank == last else None, last, group)
    told["scatter"] = out.tolist()
    out = [torch.empty_like(own) for _ in range(n)]
    dist.gather(own, out if rank == last else None, last, group)
    told["gather"] = [each.tolist() for each in out] if rank == last else []
    out = [torch.empty_like(own) for _ in range(n)]
    dist.all_gather(out, own, group)
    told["all_gather"] = [each.tolist() for each in out]
    gathered = torch.stack(out)
    told["scan"] = gathered[: rank + 1].sum(0).tolist()
    told["scan max"] = gathered[: rank + 1].amax(0).tolist()
    out = torch.empty(n * 2, dtype=torch.int64)
    dist.all_to_all_single(out, torch.cat(rows), group=group)
    told["all_to_all"] = out.view(n, 2).tolist()
    out = torch.empty_like(own)
    dist.batch_isend_irecv([
        dist.P2POp(dist.isend, own, (rank + 1) % n, group), dist.P2POp(dist.irecv, out, (rank - 1) % n, group)
    ])[-1].wait()
    told["sendrecv"] = out.tolist()
    dist.barrier(group)
    if rank == 0:
        dist.send(own, 1, group)
    elif rank == 1:
        out = torch.empty_like(own)
        dist.recv(out, 0, group)
        told["send"] = out.tolist()
    return told

answers = {}
for n in range(2, 17):
    group = dist.new_group(range(n))
    if rank < n:
        answers[n] = torch_says(n, group)
"""


def value(rank: int, item: int = 0) -> list[int]:
    return [(rank * 7 + item * 5 + i * 3) % 11 + 1 for i in range(2)]


@pytest.fixture(scope="module")
def torch_says() -> Iterator[list[dict[int, dict[Any, Any]]]]:
    """For each rank: n → collective (and op) → what torch gave it."""
    with nbcomm.start(16) as session:
        session.run(CODE, quiet=True)
        yield session.pull("answers")


def after(made: Plan, rank: int) -> list[Any]:
    return [cell.value for cell in made.after[rank]]


@pytest.mark.world
@pytest.mark.timeout(180)
@pytest.mark.parametrize("n", SIZES)
def test_it_is_what_torch_does(torch_says: list[dict[int, dict[Any, Any]]], n: int) -> None:
    own, rows, last = [value(r) for r in range(n)], [[value(r, i) for i in range(n)] for r in range(n)], n - 1
    plans = {
        "broadcast": plan("broadcast", own, src=last),
        "scatter": plan("scatter", rows[last], src=last),
        "gather": plan("gather", own, dst=last),
        "all_gather": plan("all_gather", own),
        "all_to_all": plan("all_to_all", rows),
        "scan": plan("scan", own),
        "scan max": plan("scan", own, op="max"),
        "sendrecv": plan("sendrecv", own),
        "send": plan("send", own),
    }
    for op in OPS:
        plans["all_reduce", op] = plan("all_reduce", own, op=op)
        plans["reduce", op] = plan("reduce", own, op=op, dst=last)
        if op not in ("band", "bor", "bxor"):
            plans["reduce_scatter", op] = plan("reduce_scatter", rows, op=op)
    for key, made in plans.items():
        for rank in range(n):
            got, said = after(made, rank), torch_says[rank][n].get(key)
            if said is None or said == []:
                assert got == [], (key, rank)
            elif key in ("gather", "all_gather", "all_to_all"):
                assert got == said, (key, rank)
            else:
                assert got == [pytest.approx(said, rel=1e-6)], (key, rank)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [1, 2, 3, 8, 16])
def test_every_cell_has_the_sources_that_flow_into_it(name: str, n: int) -> None:
    if name == "send" and n == 1:
        return
    made = plan(name, n=n)
    came: dict[tuple[int, int], set[int]] = {}
    for flow in made.flows:
        came.setdefault((flow.dst, flow.place), set()).add(flow.src)
        assert flow.src in made.before[flow.src][flow.item].sources
    cells = {(rank, place): cell for rank in made.ranks for place, cell in enumerate(made.after[rank])}
    assert {place: set(cell.sources) for place, cell in cells.items()} == came
    assert draw(made).startswith("<svg ")


def test_a_scan_that_is_exclusive_begins_with_what_changes_nothing() -> None:
    made = plan("scan", [[1, 2], [3, 4], [5, 6]], exclusive=True)
    assert [after(made, rank) for rank in range(3)] == [[[0, 0]], [[1, 2]], [[4, 6]]]
    assert made.after[0][0].sources == ()


def test_a_group_has_its_own_ranks() -> None:
    made = plan("broadcast", ["a", "b"], ranks=[2, 5], src=5)
    assert made.ranks == (2, 5)
    assert after(made, 2) == ["b"]
    assert made.law == "out[r] = data of rank 5, on every rank r"


@pytest.mark.parametrize(
    ("name", "world", "group"),
    [
        (
            "scatter",
            "out[r] = item r of rank 0's items",
            "the i-th of ranks 3, 2 gets item i of rank 3's items, counted from 0",
        ),
        (
            "gather",
            "out = [data of rank 0, data of rank 1, …], on rank 0 only",
            "out = [data of rank 3, data of rank 2], on rank 3 only",
        ),
        (
            "reduce_scatter",
            "out[r] = sum over all ranks s of data[s][r]: rank r gets share r",
            "the i-th of ranks 3, 2 gets sum over all of them of their shares i, counted from 0",
        ),
        (
            "all_to_all",
            "out[r][s] = items[s][r]: what rank s has for rank r",
            "the i-th of ranks 3, 2 gets item i of each of them, counted from 0",
        ),
        (
            "scan",
            "out[r] = sum over the ranks up to r of data",
            "out[r] = sum over those of ranks 3, 2 up to r of data, in this order",
        ),
    ],
)
def test_the_law_of_a_group_counts_its_places(name: str, world: str, group: str) -> None:
    assert plan(name, n=3).law == world
    assert plan(name, n=2, ranks=[3, 2]).law == group


def test_tensors_and_arrays_are_values_too() -> None:
    import numpy as np
    import torch

    made = plan("all_reduce", [torch.tensor([1, 2]), torch.tensor([3, 4])])
    assert made.after[1][0].value == [4, 6]
    made = plan("reduce_scatter", [np.arange(2), np.arange(2)])
    assert made.after[1][0].text == "2"


def test_the_size_of_large_arrays_is_a_note() -> None:
    import torch

    shares = [torch.zeros(4, 8) for _ in range(2)]
    assert plan("all_reduce", shares).notes == ("each value: 4×8 float32, 128 B",)
    assert plan("all_gather", [shares[0], shares[1].half()]).notes[0].split("; ") == [
        "each value before: 4×8 float32, 128 B (rank 0), 4×8 float16, 64 B (rank 1)",
        "after: 4×8 float32, 128 B (ranks 0-1), 4×8 float16, 64 B (ranks 0-1)",
    ]
    assert plan("scatter", shares).notes == ("each value: 4×8 float32, 128 B",)
    assert plan("all_reduce", [shares[0][0, :4]] * 2).notes == (), "all of it is shown"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: plan("allreduce", [1]), "no picture of 'allreduce'"),
        (lambda: plan("all_reduce", [1, 2], op="median"), "no reduction 'median'"),
        (lambda: plan("all_reduce", [[1], [1, 2]]), "values of one shape"),
        (lambda: plan("all_reduce", ["a", 1]), "not defined for these numbers"),
        (lambda: plan("all_reduce", []), "one value for each"),
        (lambda: plan("all_to_all", [[1, 2], [1]]), "rank 1 has"),
        (lambda: plan("broadcast", [1, 2], src=2), "src=2 is not one of the ranks 0-1"),
        (lambda: plan("gather", [1, 2], dst=-1), "dst=-1 is not one"),
        (lambda: plan("send", [1, 2], dst=0), "cannot send to itself"),
        (lambda: plan("barrier", ["a", "b"]), "moves no data"),
    ],
)
def test_what_does_not_fit_is_said_in_a_sentence(call: Any, words: str) -> None:
    with pytest.raises((CollectiveError, OpError), match=words.replace("(", r"\(")):
        call()


def test_made_up_values_fit_every_collective() -> None:
    for name in NAMES:
        for n in range(2, 17):
            assert plan(name, made_up(name, n)).ranks == tuple(range(n))
