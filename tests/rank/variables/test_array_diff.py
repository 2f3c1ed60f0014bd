"""Where two arrays part is what NumPy says when it looks at all of them at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nbcomm.rank.variables import array_diff
from nbcomm.rank.variables.array_diff import Elements, bits, element

DTYPES = ["float16", "float32", "float64", "int8", "int64", "uint8", "uint64", "complex64", "bool"]
SPECIAL = [0.0, -0.0, 1.0, 1.5, -2.0, float("nan"), float("inf"), float("-inf")]


@st.composite
def pairs(draw: Any) -> tuple[Any, Any]:
    """Two arrays of one shape and dtype, the second mostly like the first, one of them perhaps turned."""
    shape = draw(st.lists(st.integers(0, 4), max_size=3).map(tuple))
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    count = int(np.prod(shape))
    if dtype.kind in "iu":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        numbers = st.one_of(st.sampled_from([low, high, 0, 1]), st.integers(low, high))
    else:
        numbers = st.booleans() if dtype.kind == "b" else st.sampled_from(SPECIAL)
    one = draw(st.lists(numbers, min_size=count, max_size=count))
    other = [draw(numbers) if draw(st.integers(0, 3)) == 0 else number for number in one]
    with np.errstate(all="ignore"):
        a, b = (np.array(numbers, dtype=dtype).reshape(shape) for numbers in (one, other))
    return (np.asfortranarray(a) if draw(st.booleans()) else a), b


@pytest.mark.parametrize("torches", [False, True], ids=["arrays", "tensors"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_it_is_what_numpy_finds(torches: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_diff, "_BLOCK", 24)

    @given(pairs(), st.sampled_from([0.0, 0.5, 3.0]))
    def check(both: tuple[Any, Any], atol: float) -> None:
        a, b = both
        found = Elements(*(map(torch.from_numpy, both) if torches else both), atol)
        width = a.dtype.itemsize
        raw = [np.frombuffer(x.tobytes(), np.uint8).reshape(-1, width) for x in both]
        unlike = (raw[0] != raw[1]).any(axis=1) if a.size else np.zeros(0, bool)
        assert found.total == a.size
        if a.dtype.kind == "b":
            assert found.count == unlike.sum()
            assert found.absolute.place == -1
            return
        wide = object if a.dtype.kind in "iu" else np.result_type(a.dtype, np.float64)
        x, y = a.reshape(-1).astype(wide), b.reshape(-1).astype(wide)
        apart = np.abs(x - y).astype(object if wide is object else np.float64)
        if atol:
            close = (apart <= atol) | (x == y) | ((x != x) & (y != y))  # noqa: PLR0124 - that is NaN
            assert found.close == (unlike & close.astype(bool)).sum()
            unlike, every = unlike & ~close.astype(bool), unlike
        else:
            every = unlike
        assert found.count == unlike.sum()
        assert found.first == (int(np.argmax(unlike)) if unlike.any() else -1)
        far = [(one, place) for place, one in enumerate(apart) if every[place] and one == one and one > 0]  # noqa: PLR0124
        best = max(far, key=lambda pair: (pair[0], -pair[1]), default=(0, -1))
        assert (found.absolute.amount, found.absolute.place) == best
        shares = [
            (float(one) / abs(complex(y[place])), place)
            for one, place in far
            if y[place] != 0 and np.isfinite(complex(y[place]))
        ]
        if shares:
            assert found.relative.amount == pytest.approx(max(shares)[0], rel=1e-12)

    check()


def test_numbers_that_do_not_fit_are_told_apart_exactly() -> None:
    found = Elements(np.array([2**63 - 1, 0]), np.array([-(2**63), 1]))
    assert (found.count, found.absolute.amount, found.absolute.place) == (2, 2**64 - 1, 0)


@pytest.mark.parametrize(
    "dtype",
    [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float64, torch.complex64, torch.int16, torch.bool],
)
def test_dtypes_that_numpy_has_not_and_others(dtype: torch.dtype) -> None:
    a = torch.tensor([[1, 0], [1, 1]]).to(dtype)
    b = a.clone()
    b[1, 0] = 0
    found = Elements(a.t(), b.t())
    assert (found.count, found.total) == (1, 4)
    index, written = element(a.t(), found.first)
    assert index == [0, 1]
    assert written == {torch.complex64: "(1+0j)", torch.int16: "1", torch.bool: "True"}.get(dtype, "1.0")
    assert found.absolute.amount == (0 if dtype is torch.bool else 1)


def test_nothing_and_a_number_alone() -> None:
    assert Elements(torch.empty(0, 3), torch.empty(0, 3)).total == 0
    found = Elements(torch.tensor(1.0), torch.tensor(3.0))
    assert (found.count, element(torch.tensor(1.0), found.first)) == (1, ([], "1.0"))


def test_what_is_no_number_differs_all_the_same() -> None:
    for a, b in (
        (np.array(["ab", "c"]), np.array(["ab", "d"])),
        (np.array(["2020", "2021"], "M8[Y]"), np.array(["2020", "2022"], "M8[Y]")),
        (np.zeros(2, [("a", "i4"), ("b", "f8")]), np.array([(0, 0), (0, 1)], [("a", "i4"), ("b", "f8")])),
    ):
        found = Elements(a, b)
        assert (found.count, found.first, found.absolute.place) == (1, 1, -1)
        assert element(a, 1)[1] != element(b, 1)[1]


def test_bits_tell_one_nan_from_another() -> None:
    a = np.array([0x7FC00001, 0x7FC00002], dtype=np.uint32).view(np.float32)
    assert [bits(a, 0), bits(torch.from_numpy(a), 1)] == ["0x7fc00001", "0x7fc00002"]
