"""Reductions by name, and what they mean for dtypes and for Python numbers."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
import torch.distributed as dist

from nbcomm.comm.algorithms import reduce_ops
from nbcomm.errors import OpError


@pytest.mark.parametrize("name", ["sum", "mean", "min", "max", "product", "band", "bor", "bxor"])
def test_a_name_is_read_in_any_letter_case(name):
    assert (
        reduce_ops.parse(name).name
        == reduce_ops.parse(name.upper()).name
        == reduce_ops.parse(name.title()).name
        == name
    )


@pytest.mark.parametrize(("op", "name"), [("avg", "mean"), ("prod", "product"), ("AVG", "mean")])
def test_aliases(op, name):
    assert reduce_ops.parse(op).name == name


@pytest.mark.parametrize("name", ["SUM", "AVG", "MIN", "MAX", "PRODUCT", "BAND", "BOR", "BXOR"])
def test_torchs_own_reduce_ops_are_read(name):
    expected = {"AVG": "mean"}.get(name, name.lower())
    assert reduce_ops.parse(getattr(dist.ReduceOp, name)).name == expected
    assert reduce_ops.parse(dist.ReduceOp(getattr(dist.ReduceOp, name))).name == expected


@pytest.mark.parametrize("op", ["summ", "", "average", 3, None, sum, dist.ReduceOp.PREMUL_SUM])
def test_an_unknown_op_names_the_valid_ones(op):
    with pytest.raises(
        OpError, match=r"sum, mean \(or avg\), min, max, product \(or prod\), band, bor or bxor"
    ) as caught:
        reduce_ops.parse(op)
    assert isinstance(caught.value, ValueError)


def test_ints_stay_exact_however_long():
    values = [2**53 + 1, 2**64, -1, 3]
    assert reduce_ops.numbers(reduce_ops.parse("sum"), values) == sum(values)
    assert reduce_ops.numbers(reduce_ops.parse("product"), values) == math.prod(values)
    assert type(reduce_ops.numbers(reduce_ops.parse("sum"), [1, 2])) is int


def test_floats_are_python_floats():
    assert reduce_ops.numbers(reduce_ops.parse("sum"), [12.3456, 0.1]) == 12.3456 + 0.1
    assert reduce_ops.numbers(reduce_ops.parse("mean"), [0, 1, 2, 3]) == 1.5
    assert reduce_ops.numbers(reduce_ops.parse("mean"), [Fraction(1, 3), Fraction(1, 3)]) == Fraction(1, 3)


def test_bools_are_counted_compared_and_combined_bitwise():
    assert reduce_ops.numbers(reduce_ops.parse("sum"), [True, True, False]) == 2
    assert type(reduce_ops.numbers(reduce_ops.parse("sum"), [True])) is int
    assert reduce_ops.numbers(reduce_ops.parse("max"), [False, True]) is True
    assert reduce_ops.numbers(reduce_ops.parse("band"), [True, False]) is False
    assert reduce_ops.numbers(reduce_ops.parse("mean"), [True, False]) == 0.5


@pytest.mark.parametrize("name", ["min", "max"])
def test_one_nan_makes_the_extreme_nan_wherever_it_stands(name):
    for values in ([math.nan, 1.0], [1.0, math.nan]):
        assert math.isnan(reduce_ops.numbers(reduce_ops.parse(name), values))


@pytest.mark.parametrize(("name", "values"), [("band", [1.0, 2.0]), ("min", [1j, 2j]), ("mean", [10**400, 1])])
def test_numbers_without_the_reduction_are_refused(name, values):
    with pytest.raises(OpError, match=name):
        reduce_ops.numbers(reduce_ops.parse(name), values)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("band", torch.float32), ("bxor", torch.complex64), ("min", torch.complex64), ("mean", torch.uint64)],
)
def test_dtypes_without_the_reduction_are_refused(name, dtype):
    with pytest.raises(OpError, match=name):
        reduce_ops.rule(reduce_ops.parse(name), dtype)


@pytest.mark.parametrize(
    ("name", "dtype", "result"),
    [
        ("mean", torch.int64, torch.float32),
        ("mean", torch.bool, torch.float32),
        ("mean", torch.float64, torch.float64),
        ("mean", torch.bfloat16, torch.bfloat16),
        ("sum", torch.bool, torch.int64),
        ("max", torch.bool, torch.bool),
        ("sum", torch.int16, torch.int16),
        ("sum", torch.uint8, torch.uint8),
    ],
)
def test_result_dtypes(name, dtype, result):
    assert reduce_ops.rule(reduce_ops.parse(name), dtype).result == result


@pytest.mark.parametrize(
    ("dtype", "wire"), [(torch.int64, torch.float64), (torch.int32, torch.int64), (torch.float16, torch.float32)]
)
def test_a_mean_travels_in_a_dtype_that_holds_the_sum(dtype, wire):
    assert reduce_ops.rule(reduce_ops.parse("mean"), dtype).wire == wire
