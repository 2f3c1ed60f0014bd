"""Every collective against a plain NumPy model of it, over worlds of 1, 2, 3, 4 and 8 ranks.

The values are small whole numbers, which every dtype holds exactly, and so are their sums; so the answers are exact,
whatever the dtype, the order of the additions and the route that the data takes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ..worlds import worlds_of_a_module  # noqa: F401  # the fixture `worlds`
from . import model

SIZES = [1, 2, 3, 4, 8]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTEGERS = ["uint8", "int8", "int16", "uint16", "int32", "int64"]
OTHERS = ["complex64", "complex128", "bool"]
DTYPES = [*FLOATS, *INTEGERS, *OTHERS]
LAYOUTS = ["plain", "strided", "transposed", "expanded", "grad"]
OPS = [*model.FOLD]

cases = settings(max_examples=8)
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
some = {
    "shape": shapes,
    "dtype": st.sampled_from(DTYPES),
    "layout": st.sampled_from(LAYOUTS),
    "seed": st.integers(0, 2**31),
    "root": st.integers(0, 7),
}


def numbers(seed: int, rank: int, shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    """A rank's values, for the model: bool, int, float or complex, of full width."""
    found = np.random.default_rng([seed, rank]).integers(0, 3, shape)
    if dtype == "bool":
        return found.astype(bool)
    if dtype.startswith("complex"):
        return found + 1j * found[::-1] if found.ndim else found + 1j
    return found.astype(np.float64) if "float" in dtype else found


def tensor(values: np.ndarray[Any, Any], dtype: str, layout: str) -> torch.Tensor:
    """The same values as a tensor that lies in memory in one way or another."""
    made = torch.from_numpy(np.array(values)).to(getattr(torch, dtype))
    if layout == "strided" and made.ndim:
        wide = torch.zeros((*made.shape[:-1], 2 * made.shape[-1]), dtype=made.dtype)
        wide[..., ::2] = made
        return wide[..., ::2]
    if layout == "transposed" and made.ndim >= 2:
        return made.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "expanded" and made.numel() == 1:
        return made.reshape(1).expand(1).reshape(made.shape)
    if layout == "grad" and (made.is_floating_point() or made.is_complex()):
        return made.requires_grad_()
    return made


def plain(result: Any) -> Any:
    """What a rank got, as NumPy arrays with their torch dtypes."""
    if isinstance(result, torch.Tensor):
        assert not result.requires_grad
        wide = torch.complex128 if result.is_complex() else torch.float64 if result.is_floating_point() else torch.int64
        return str(result.dtype).removeprefix("torch."), result.to(wide).numpy()
    return [plain(part) for part in result] if isinstance(result, list) else result


def equal(got: Any, expected: Any, dtype: str) -> bool:
    """Whether a plain result is the model's, and of this dtype."""
    if isinstance(expected, list):
        return len(got) == len(expected) and all(equal(g, e, dtype) for g, e in zip(got, expected, strict=True))
    if expected is None:
        return got is None
    return got[0] == dtype and got[1].shape == np.shape(expected) and bool(np.array_equal(got[1], expected))


def run(worlds: Any, size: int, calls: dict[str, Any], inputs: dict[str, list[Any]], dtype: str, layout: str) -> Any:
    """Each rank's plain results of all calls; that the inputs are left as they are, is checked here.

    The calls are by name, and so are the inputs, every rank's values; those of "" are for all others.
    """

    def check(comm: Any) -> Any:
        found = {}
        for name, call in calls.items():
            x = tensor(inputs.get(name, inputs[""])[comm.rank], dtype, layout)
            before = x.detach().clone()
            found[name] = plain(call(comm, x))
            assert torch.equal(x.detach(), before)
        return found

    return worlds[size].run(check)


def compare(results: list[Any], expected: dict[str, list[Any]], same: Any) -> None:
    """All ranks' results of all calls against the model's."""
    for name, values in expected.items():
        for rank, value in enumerate(values):
            assert same(results[rank][name], value), (name, rank, results[rank][name], value)


@pytest.mark.parametrize("size", SIZES)
@cases
@given(**some)
def test_movements(worlds, size, shape, dtype, layout, seed, root):
    root %= size
    values = [numbers(seed, rank, shape, dtype) for rank in range(size)]
    rows = [numbers(seed, rank, (size, *shape), dtype) for rank in range(size)]
    calls = {
        "broadcast": lambda comm, x: comm.broadcast(x, root),
        "scatter": lambda comm, x: comm.scatter(x if comm.rank == root else None, root),
        "gather": lambda comm, x: comm.gather(x, root),
        "gather, cat": lambda comm, x: comm.gather(x, root, "cat"),
        "all_gather": lambda comm, x: comm.all_gather(x),
        "all_gather, cat": lambda comm, x: comm.all_gather(x, "cat"),
        "all_gather, list": lambda comm, x: comm.all_gather(x, "list"),
        "all_to_all": lambda comm, x: comm.all_to_all(x),
        "sendrecv": lambda comm, x: comm.sendrecv(x, (comm.rank + 1) % size, (comm.rank - 1) % size),
    }
    expected = {
        "broadcast": model.broadcast(values, root),
        "scatter": model.scatter(rows, root),
        "gather": model.gather(values, root, "list"),
        "gather, cat": model.gather(values, root, "cat"),
        "all_gather": model.all_gather(values, "stack"),
        "all_gather, cat": model.all_gather(values, "cat"),
        "all_gather, list": model.all_gather(values, "list"),
        "all_to_all": model.all_to_all(rows),
        "sendrecv": model.ring(values),
    }
    results = run(worlds, size, calls, {"": values, "scatter": rows, "all_to_all": rows}, dtype, layout)
    compare(results, expected, lambda got, value: equal(got, value, dtype))


def result_dtype(op: str, dtype: str) -> str | None:
    """The law of reference and docstring; None where there is no such reduction."""
    if op in ("band", "bor", "bxor"):
        return dtype if dtype in (*INTEGERS, "bool") else None
    if dtype.startswith("complex"):
        return None if op in ("min", "max") else dtype
    if op == "mean" and "float" not in dtype:
        return "float32"
    return "int64" if dtype == "bool" and op in ("sum", "product") else dtype


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("op", OPS)
@cases
@given(**some)
def test_reductions(worlds, size, op, shape, dtype, layout, seed, root):
    root %= size
    result = result_dtype(op, dtype)
    if result is None:
        return  # refused: see test_ops.py
    values = [numbers(seed, rank, shape, dtype) for rank in range(size)]
    rows = [numbers(seed, rank, (2 * size, *shape), dtype) for rank in range(size)]
    counted = dtype == "bool" and op in ("sum", "product", "mean")
    wide, wide_rows = ([each.astype(np.int64) if counted else each for each in these] for these in (values, rows))
    calls = {
        "all_reduce": lambda comm, x: comm.all_reduce(x, op),
        "reduce": lambda comm, x: comm.reduce(x, op, root),
        "reduce_scatter": lambda comm, x: comm.reduce_scatter(x, op),
        "scan": lambda comm, x: comm.scan(x, op),
        "exclusive scan": lambda comm, x: (comm.scan(x, op, exclusive=True), None)[comm.rank == 0],
    }
    expected = {
        "all_reduce": model.all_reduce(wide, op),
        "reduce": model.reduce(wide, op, root),
        "reduce_scatter": model.reduce_scatter(wide_rows, op),
        "scan": model.scan(wide, op),
        "exclusive scan": model.exclusive_scan(wide, op),
    }
    results = run(worlds, size, calls, {"": values, "reduce_scatter": rows}, dtype, layout)
    compare(results, expected, lambda got, value: close(got, value, result))


def close(got: Any, expected: Any, dtype: str) -> bool:
    """As `equal`; a mean is rounded to its dtype, and integers wrap in theirs."""
    if expected is None:
        return got is None
    if dtype in INTEGERS:
        expected = np.asarray(expected).astype(dtype)
    wide = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-6, "complex64": 1e-6}.get(dtype, 1e-12)
    return got[0] == dtype and got[1].shape == np.shape(expected) and bool(np.allclose(got[1], expected, rtol=wide))


@pytest.mark.parametrize("size", SIZES)
@cases
@given(
    seed=st.integers(0, 2**31), described=st.lists(shapes, min_size=1, max_size=4), op=st.sampled_from(["sum", "max"])
)
def test_nested_data_is_as_its_leaves(worlds, size, seed, described, op):
    def check(comm: Any) -> Any:
        def value(rank: int) -> Any:
            parts = [
                tensor(numbers(seed + place, rank, shape, "float32"), "float32", "plain")
                for place, shape in enumerate(described)
            ]
            return {"parts": parts, "first": (parts[0], rank), "name": "n"}

        mine = value(comm.rank)
        numeric = {"parts": mine["parts"], "first": mine["first"]}
        everybody = [value(rank) for rank in range(comm.world_size)]
        reduced = comm.all_reduce(numeric, op)
        gathered = comm.all_gather(mine)
        fold = {"sum": lambda rows: rows.sum(0), "max": lambda rows: rows.amax(0)}[op]
        for place in range(len(described)):
            rows = torch.stack([other["parts"][place] for other in everybody])
            assert torch.equal(reduced["parts"][place], fold(rows))
            assert torch.equal(gathered["parts"][place], rows)
        assert reduced["first"][1] == {"sum": sum, "max": max}[op](range(comm.world_size))
        assert gathered["first"][1] == list(range(comm.world_size))
        assert gathered["name"] == ["n"] * comm.world_size
        return True

    assert worlds[size].run(check) == [True] * size
