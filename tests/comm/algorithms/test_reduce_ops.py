"""Reductions by name, and what they mean for dtypes and for Python numbers."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
import torch.distributed as dist

from nbcomm.comm.algorithms import reduce_ops
from nbcomm.comm.algorithms.reduce_ops import Rule
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


@pytest.mark.parametrize("op", ["summ", "", "average", 3, None, all, dist.ReduceOp.PREMUL_SUM])
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


BITS = "is a bitwise operation, which is not defined for {}; use sum, mean, min, max or product."
ORDER = "needs an order, which complex64 does not have; use sum, mean or product."
UINT64 = "torch cannot compute the {} of uint64; convert to int64 or float64 first."


@pytest.mark.parametrize(
    ("name", "dtype", "said"),
    [
        ("band", torch.float32, f"band {BITS.format('float32')}"),
        ("bxor", torch.complex64, f"bxor {BITS.format('complex64')}"),
        ("min", torch.complex64, f"min {ORDER}"),
        ("max", torch.complex64, f"max {ORDER}"),
        ("mean", torch.uint64, UINT64.format("mean")),
        ("min", torch.uint64, UINT64.format("min")),
        ("max", torch.uint64, UINT64.format("max")),
    ],
)
def test_dtypes_without_the_reduction_are_refused(name, dtype, said):
    with pytest.raises(OpError) as refused:
        reduce_ops.rule(reduce_ops.parse(name), dtype)
    assert str(refused.value) == said


@pytest.mark.parametrize(
    ("name", "dtype", "bitwise", "rule"),
    [
        ("band", torch.bool, True, Rule(torch.uint8, torch.bool)),
        ("band", torch.bool, False, Rule(torch.uint8, torch.bool, folded=True)),
        ("max", torch.bool, False, Rule(torch.uint8, torch.bool)),
        ("sum", torch.bool, True, Rule(torch.int64, torch.int64)),
        ("product", torch.bool, True, Rule(torch.int64, torch.int64)),
        ("mean", torch.bool, True, Rule(torch.int64, torch.float32)),
        ("mean", torch.uint8, True, Rule(torch.int64, torch.float32)),
        ("mean", torch.int64, True, Rule(torch.float64, torch.float32)),
        ("mean", torch.float16, True, Rule(torch.float32, torch.float16)),
        ("mean", torch.complex64, True, Rule(torch.complex64, torch.complex64)),
        ("sum", torch.float16, True, Rule(torch.float16, torch.float16)),
        ("sum", torch.int16, True, Rule(torch.int32, torch.int16)),
        ("sum", torch.uint64, True, Rule(torch.int64, torch.uint64)),
        ("sum", torch.int32, False, Rule(torch.int32, torch.int32)),
        ("bor", torch.int32, True, Rule(torch.int32, torch.int32)),
        ("bor", torch.int32, False, Rule(torch.int32, torch.int32, folded=True)),
        ("sum", torch.complex64, True, Rule(torch.complex64, torch.complex64)),
        ("product", torch.complex64, True, Rule(torch.complex64, torch.complex64, folded=True)),
        ("product", torch.float32, True, Rule(torch.float32, torch.float32)),
    ],
)
def test_the_rule_of_a_dtype(name, dtype, bitwise, rule):
    assert reduce_ops.rule(reduce_ops.parse(name), dtype, bitwise=bitwise) == rule


def test_a_backend_is_taken_to_know_the_bitwise_ops():
    assert reduce_ops.rule(reduce_ops.parse("bor"), torch.int32).folded is False


def test_the_mean_of_integers_follows_the_default_dtype():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert reduce_ops.rule(reduce_ops.parse("mean"), torch.int32).result == torch.float64
    finally:
        torch.set_default_dtype(before)


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


ROWS = [[1, 6, 3], [5, 3, 9]]


@pytest.mark.parametrize(
    ("name", "combined"),
    [
        ("sum", [6, 9, 12]),
        ("mean", [3, 4.5, 6]),
        ("min", [1, 3, 3]),
        ("max", [5, 6, 9]),
        ("product", [5, 18, 27]),
        ("band", [1, 2, 1]),
        ("bor", [5, 7, 11]),
        ("bxor", [4, 5, 10]),
    ],
)
def test_rows_are_combined_place_by_place(name, combined):
    op = reduce_ops.parse(name)
    rows = torch.tensor(ROWS, dtype=torch.float64 if name == "mean" else torch.int64)
    assert reduce_ops.fold(op, rows).tolist() == combined
    assert [reduce_ops.numbers(op, pair) for pair in zip(*ROWS, strict=True)] == combined


VALUES = {
    torch.uint8: [0, 7, 255],
    torch.int8: [-128, 0, 127],
    torch.int64: [-(2**63), -1, 2**63 - 1],
    torch.float32: [-math.inf, -0.5, math.inf],
    torch.bool: [False, True, True],
    torch.complex64: [1j, 0, -2],
}
KNOWN = {
    torch.bool: ("min", "max", "band", "bor", "bxor"),
    torch.float32: ("sum", "product", "min", "max"),
    torch.complex64: ("sum", "product"),
}
EACH = ("sum", "product", "min", "max", "band", "bor", "bxor")


@pytest.mark.parametrize(
    ("name", "dtype"), [(name, dtype) for dtype in VALUES for name in KNOWN.get(dtype, EACH)], ids=str
)
def test_the_identity_leaves_every_value_as_it_is(name, dtype):
    op = reduce_ops.parse(name)
    values = torch.tensor(VALUES[dtype], dtype=dtype)
    first = torch.full_like(values, reduce_ops.identity(op, dtype))
    assert reduce_ops.fold(op, torch.stack([first, values])).tolist() == values.tolist()


@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize("number", [-7, 0, 12, True])
def test_so_does_that_of_numbers(name, number):
    op = reduce_ops.parse(name)
    assert reduce_ops.numbers(op, [reduce_ops.number_identity(op), number]) == number


def test_the_mean_of_nothing_is_no_number():
    mean = reduce_ops.parse("mean")
    assert math.isnan(reduce_ops.identity(mean, torch.float32))
    assert math.isnan(reduce_ops.number_identity(mean))


@pytest.mark.parametrize("name", [*EACH, "mean"])
def test_sums_and_means_alone_are_linear(name):
    op = reduce_ops.parse(name)
    assert op.linear == (name in ("sum", "mean"))
    assert op.scale(4) == (0.25 if name == "mean" else 1)


@pytest.mark.parametrize(("dtype", "ones"), [(torch.uint8, 255), (torch.int8, -1), (torch.int64, -1)])
def test_what_is_neutral_to_band_has_every_bit_and_fits(dtype, ones):
    assert reduce_ops.identity(reduce_ops.parse("band"), dtype) == ones
