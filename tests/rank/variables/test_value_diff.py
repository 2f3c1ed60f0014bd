"""Where two values part: how many of their parts, which is the first, and by how much."""

from __future__ import annotations

import dataclasses
import pickle
import threading
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nbcomm.errors import TransferError
from nbcomm.protocol.payload import pack, unpack
from nbcomm.rank.variables.digest import digest
from nbcomm.rank.variables.value_diff import compare, form


@dataclasses.dataclass
class Config:
    rate: float = 0.1
    layers: Any = None


class Counter:
    def __init__(self, count: int) -> None:
        self.count = count


def apart(here: Any, there: Any, atol: float = 0.0) -> dict[str, Any]:
    """Compare as ranks do: the other's value has travelled."""
    blob, buffers = pack(form(there))
    return compare(form(here), unpack(blob, [bytes(buffer) for buffer in buffers]), atol)


def model(change: float = 0.0) -> torch.nn.Module:
    torch.manual_seed(0)
    made = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    with torch.no_grad():
        made[1].weight[1, 0] += change
    return made


def knot(last: int) -> list[Any]:
    made: list[Any] = [{"a": last}]
    made.append(made)
    return made


FIRST = [
    (torch.tensor([[1.0, 2], [3, 4]]), torch.tensor([[1.0, 2], [5, 4]]), ("elements", "", [1, 0], "3.0", "5.0")),
    (torch.tensor(1.0), torch.tensor(1.5), ("elements", "", [], "1.0", "1.5")),
    (torch.tensor([0.0]), torch.tensor([-0.0]), ("elements", "", [0], "0.0", "-0.0")),
    (torch.ones(2), torch.ones(3), ("type", "", None, "Tensor float32 (2,)", "Tensor float32 (3,)")),
    (torch.ones(2), torch.ones(2).double(), ("type", "", None, "Tensor float32 (2,)", "Tensor float64 (2,)")),
    (torch.ones(2), np.ones(2, "f4"), ("type", "", None, "Tensor float32 (2,)", "ndarray float32 (2,)")),
    (np.array(["a", "b"]), np.array(["a", "c"]), ("elements", "", [1], "'b'", "'c'")),
    (np.array([1, None], object), np.array([1, 2], object), ("type", "[1]", None, "NoneType", "int")),
    (1, 2, ("value", "", None, "1", "2")),
    (1, 1.0, ("type", "", None, "int", "float")),
    (0.0, -0.0, ("value", "", None, "0.0", "-0.0")),
    (True, False, ("value", "", None, "True", "False")),
    (10**5000, 10**5000 + 1, ("value", "", None, None, None)),
    ("a" * 50 + "b", "a" * 50 + "c" * 30, ("text", "", [50], "…'aaaaaaaaaaaab'", "…'aaaaaaaaaaaacccccccccccc'…")),
    ("same", "same and more", ("text", "", [4], "'same'", "'same and more'")),
    (b"ab", b"ac", ("text", "", [1], "b'ab'", "b'ac'")),
    ([1, 2, 3], [1, 5, 3], ("elements", "", [1], "2", "5")),
    ([1, 2], [1, 2, 3], ("elements", "", [2], "nothing", "3")),
    ([1, "x"], [1, 2], ("elements", "", [1], "'x'", "2")),
    ([1], (1,), ("type", "", None, "list of 1", "tuple of 1")),
    ([1, [2]], [1, [3]], ("elements", "[1]", [0], "2", "3")),
    ([1, [2]], [1], ("type", "", None, "list", "list of 1")),
    ({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 3}}, ("value", "['b']['c']", None, "2", "3")),
    ({"a": 1}, {"a": 1, "b": 2}, ("lacking", "['b']", None, "", "int")),
    ({"a": 1, "b": 2}, {"a": 1}, ("extra", "['b']", None, "int", "")),
    ({1, 2}, {1, 3}, ("lacking", "{3}", None, "", "int")),
    (Config(layers=[1]), Config(layers=[2]), ("elements", ".layers", [0], "1", "2")),
    (Counter(1), Counter(2), ("value", ".count", None, "1", "2")),
    (model(1.0), model(), ("elements", "['1.weight']", [1, 0], None, None)),
    (model(1.0).state_dict(), model().state_dict(), ("elements", "['1.weight']", [1, 0], None, None)),
    (OrderedDict(a=1), {"a": 1}, ("type", "", None, "collections.OrderedDict", "dict")),
    (torch.eye(2).to_sparse(), torch.eye(2).to_sparse() * 2, ("elements", ".values()", [0], "1.0", "2.0")),
    (len, print, ("type", "", None, None, None)),
    (knot(1), knot(2), ("value", "[0]['a']", None, "1", "2")),
    (None, 0, ("type", "", None, "NoneType", "int")),
    ({("k", 1): 1}, {("k", 1): 2}, ("value", "[('k', 1)]", None, "1", "2")),
]  # fmt: skip


@pytest.mark.parametrize(("here", "there", "first"), FIRST, ids=range(len(FIRST)))
def test_the_first_difference(here: Any, there: Any, first: tuple[Any, ...]) -> None:
    found = apart(here, there)
    how, path, index, mine, theirs = first
    assert (found["first"]["how"], found["first"]["path"], found["first"].get("index")) == (how, path, index)
    assert mine in (None, found["first"]["here"])
    assert theirs in (None, found["first"]["there"])
    assert found["different"] >= 1
    assert found["first"]["here"] != found["first"]["there"]
    assert digest(here) != digest(there)
    assert apart(here, here)["different"] == 0


def test_parts_are_counted_and_the_largest_difference_is_found_anywhere() -> None:
    here = {"a": torch.tensor([1.0, 2.0]), "b": [1, 2], "c": 5.0, "d": "x"}
    there = {"a": torch.tensor([1.0, 2.5]), "b": [1, 9], "c": 5.5, "d": "x"}
    found = apart(here, there)
    assert (found["leaves"], found["different"]) == (4, 3)
    assert found["absolute"] == (7, "['b']", [1])
    assert found["relative"] == (7 / 9, "['b']", [1])
    assert (found["first"]["path"], found["first"]["count"], found["first"]["total"]) == ("['a']", 1, 2)


def test_within_the_tolerance_numbers_are_equal_and_nothing_else_is() -> None:
    here, there = (
        {"t": torch.tensor([1.0, torch.nan]), "n": 1, "l": [1.0, 2]},
        {"t": torch.tensor([1.1, torch.nan]), "n": 2, "l": [1.5, 2]},
    )
    found = apart(here, there, atol=1.0)
    assert (found["different"], found["first"], found["close"]) == (0, None, 3)
    assert apart(here, there, atol=0.3)["different"] == 2
    assert apart("a", "b", atol=9)["different"] == 1
    assert apart(torch.tensor([True]), torch.tensor([False]), atol=9)["different"] == 1
    assert apart(1, 1.0, atol=9)["different"] == 1


def test_nans_with_other_bits_show_them() -> None:
    one, other = (torch.tensor([bits], dtype=torch.int32).view(torch.float32) for bits in (0x7FC00001, 0x7FC00002))
    first = apart(one, other)["first"]
    assert (first["here"], first["there"]) == ("nan (0x7fc00001)", "nan (0x7fc00002)")


def test_huge_numbers_are_compared_too() -> None:
    found = apart(10**400, 10**400 + 5)
    assert found["absolute"] is None or found["absolute"][0] == 5
    assert found["different"] == 1


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (threading.Lock(), "it cannot be compared: cannot pickle '_thread.lock' object"),
        ({"a": [threading.Lock()]}, r"cannot pickle '_thread.lock' object \(at \['a'\]\[0\]\)"),
        (torch.empty(1, device="meta"), "meta device"),
    ],
)
def test_what_cannot_be_looked_into_says_so(value: Any, why: str) -> None:
    with pytest.raises(TransferError, match=why):
        form(value)


def test_nothing_of_the_users_is_in_what_travels() -> None:
    value = [Config(), Counter(1), model(), {Config}, lambda: 1]
    assert b"test_comparing" not in pickle.dumps(form(value)).replace(b"tests.rank.variables.test_value_diff.", b"")


def test_shared_parts_are_walked_once() -> None:
    made: list[Any] = [torch.ones(1)]
    for _ in range(100):
        made = [made, made]
    assert apart(made, made)["different"] == 0


NESTED = st.recursive(
    st.one_of(st.integers(), st.floats(), st.text(max_size=3), st.none(), st.booleans(), st.binary(max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.text(max_size=2), st.integers(0, 3)), inner, max_size=3),
        st.tuples(inner, inner),
        st.frozensets(st.integers(0, 5), max_size=3),
    ),
    max_leaves=8,
)


@given(NESTED, NESTED)
def test_the_search_finds_something_exactly_where_the_hashes_differ(here: Any, there: Any) -> None:
    found = apart(here, there)
    assert (found["different"] > 0) == (digest(here) != digest(there))
    assert 0 <= found["different"] <= found["leaves"]
    assert (found["first"] is None) == (found["different"] == 0)
    assert apart(here, here)["different"] == 0
