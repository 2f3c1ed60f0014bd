"""Running totals on real ranks, against NumPy's idea of them."""

from __future__ import annotations

import math

import pytest
import torch

from nbcomm.errors import CollectiveError, OpError
from nbcomm.sentences import in_one_line

from ...worlds import worlds_of_a_module  # noqa: F401  # the fixture `worlds`

SIZES = [1, 2, 3, 4, 8]
FOLDS = {
    "sum": lambda rows: rows.sum(0),
    "mean": lambda rows: rows.double().mean(0),
    "min": lambda rows: rows.amin(0),
    "max": lambda rows: rows.amax(0),
    "product": lambda rows: rows.prod(0),
}
DTYPES = ["float16", "bfloat16", "float32", "float64", "int8", "uint8", "int16", "int32", "int64", "bool"]


def value(rank: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor([rank + 1, 2, rank % 2, 0]).to(dtype)


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_every_op_of_every_dtype_against_one_process(worlds, size, exclusive):
    def check(comm):
        found = {}
        for name in DTYPES:
            data = value(comm.rank, getattr(torch, name))
            for op in FOLDS:
                found[name, op] = comm.scan(data, op, exclusive)
            assert torch.equal(data, value(comm.rank, data.dtype))
        return found

    for rank, found in enumerate(worlds[size].run(check)):
        count = rank if exclusive else rank + 1
        for (name, op), got in found.items():
            dtype = getattr(torch, name)
            assert got.shape == (4,)
            if op == "mean" and not dtype.is_floating_point:
                assert got.dtype == torch.float32
            elif dtype == torch.bool and op in ("sum", "product"):
                assert got.dtype == torch.int64
            else:
                assert got.dtype == dtype
            if count:
                rows = torch.stack([value(r, dtype) for r in range(count)])
                wide = rows.long() if not dtype.is_floating_point else rows.double()
                assert torch.allclose(got.double(), FOLDS[op](wide).to(got.dtype).double(), rtol=2e-2), (name, op, rank)
            else:
                assert torch.equal(got, torch.full_like(got, _nothing(op, dtype))) or got.isnan().all()


def _nothing(op, dtype):
    if op in ("sum", "product"):
        return int(op == "product")
    if op == "mean":
        return math.nan
    if dtype == torch.bool:
        return op == "min"
    if dtype.is_floating_point:
        return math.inf if op == "min" else -math.inf
    return torch.iinfo(dtype).max if op == "min" else torch.iinfo(dtype).min


@pytest.mark.parametrize("size", [3, 4])
def test_bits_and_complex_numbers(worlds, size):
    def check(comm):
        bits, z = torch.tensor([1 << comm.rank, 7]), torch.tensor([1j * (comm.rank + 1)])
        return [comm.scan(bits, op) for op in ("band", "bor", "bxor")], comm.scan(z), comm.scan(z, "product")

    for rank, ((both, any_, odd), total, product) in enumerate(worlds[size].run(check)):
        assert both.tolist() == [0 if rank else 1, 7]
        assert any_.tolist() == [(1 << rank + 1) - 1, 7]
        assert odd.tolist() == [(1 << rank + 1) - 1, 7 if rank % 2 == 0 else 0]
        assert total.item() == 1j * sum(range(1, rank + 2))
        assert torch.allclose(product, torch.tensor([(1j) ** (rank + 1) * math.factorial(rank + 1)]))


@pytest.mark.parametrize("size", SIZES)
def test_numbers_are_exact_and_nested_data_keeps_its_structure(worlds, size):
    def check(comm):
        big = {"n": 2**60 + comm.rank, "x": [torch.ones(300_000) * comm.rank, torch.tensor(comm.rank)], "f": 0.1}
        return comm.scan(big), comm.scan(comm.rank, exclusive=True), comm.scan(comm.rank, "min", True)

    for rank, (nested, exclusive, least) in enumerate(worlds[size].run(check)):
        total = sum(range(rank + 1))
        assert nested["n"] == (rank + 1) * 2**60 + total
        assert type(nested["n"]) is int
        assert torch.equal(nested["x"][0], torch.full((300_000,), float(total)))
        assert nested["x"][1].item() == total
        assert exclusive == sum(range(rank))
        assert least == (0 if rank else math.inf)


def test_a_group_scans_in_its_own_order(worlds):
    def check(comm):
        odd = comm.new_group([1, 3])
        return comm.scan(comm.rank, group=odd) if comm.rank in (1, 3) else None

    assert worlds[4].run(check) == [None, 1, None, 4]


def test_what_cannot_be_scanned_is_refused_on_every_rank(worlds):
    def check(comm):
        said = []
        for data, op in ((torch.ones(2 + comm.rank % 2), "sum"), (torch.ones(2), "band"), ("text", "sum")):
            try:
                comm.scan(data, op)
            except (CollectiveError, OpError) as error:
                said.append(str(error))
        return said, comm.scan(1)

    for rank, (said, after) in enumerate(worlds[3].run(check)):
        assert "ranks 0,2 a float32 tensor of shape (2,); rank 1 a float32 tensor of shape (3,)" in in_one_line(said[0])
        assert "band is a bitwise operation" in said[1]
        assert "only tensors, arrays and numbers" in said[2]
        assert after == rank + 1
