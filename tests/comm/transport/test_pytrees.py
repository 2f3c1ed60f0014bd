"""Nested data keeps its structure and its types."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from nbcomm.comm.transport import pytrees
from nbcomm.errors import CollectiveError

Point = namedtuple("Point", "x y")  # noqa: PYI024  # the untyped kind is tested


class Stack(list):
    pass


@dataclass
class Batch:
    x: Any
    y: Any
    made: Any = field(default=None, init=False)


@dataclass(frozen=True)
class Frozen:
    x: int


NODES = [
    {"b": 1, "a": 2},
    OrderedDict(b=1, a=2),
    Counter(b=1, a=2),
    {1: 1, "one": 2},
    [1, 2],
    Stack([1, 2]),
    (1, 2),
    (),
    Point(1, 2),
    Batch(1, 2),
    Frozen(1),
    {"a": [(1, Point(2, {"z": Batch(3, [4])}))], "e": {}},
]


@pytest.mark.parametrize("node", NODES, ids=repr)
def test_structure_and_type_are_kept_and_the_input_is_left_alone(node):
    before = repr(node)
    same = pytrees.map_leaves(lambda leaf: leaf, node)
    assert same == node
    assert type(same) is type(node)
    doubled = pytrees.map_leaves(lambda leaf: leaf and leaf * 2, node)
    assert [leaf for _, leaf in pytrees.leaves(doubled)] == [leaf and leaf * 2 for _, leaf in pytrees.leaves(node)]
    assert repr(node) == before


def test_a_dict_keeps_the_order_of_its_keys_and_its_factory():
    assert list(pytrees.map_leaves(lambda leaf: leaf, {"b": 1, "a": 2})) == ["b", "a"]
    made = pytrees.map_leaves(lambda leaf: leaf, defaultdict(list, a=1))
    assert made["new"] == []


def test_dicts_filled_in_another_order_are_walked_alike():
    one, other = {"loss": 1, "acc": 2}, {"acc": 2, "loss": 1}
    assert list(pytrees.leaves(one)) == list(pytrees.leaves(other))
    assert pytrees.outline(one, str) == pytrees.outline(other, str)


def test_keys_of_several_types_have_one_order_too():
    one, other = {"loss": 1, 2: 3, None: 4, (0,): 5}, {(0,): 5, None: 4, 2: 3, "loss": 1}
    assert list(pytrees.leaves(one)) == list(pytrees.leaves(other))
    assert list(pytrees.map_leaves(lambda leaf: leaf, other)) == list(other)
    assert pytrees.map_leaves(lambda leaf: leaf, one) == other


def test_paths_are_as_one_would_type_them():
    data = {"a": [1, Batch(2, (3,))]}
    assert [path for path, _ in pytrees.leaves(data)] == [
        "data['a'][0]",
        "data['a'][1].x",
        "data['a'][1].y[0]",
        "data['a'][1].made",
    ]


@pytest.mark.parametrize("leaf", [1, "text", b"", None, {1, 2}, torch.zeros(2), np.zeros(2), torch.Size([2]), Batch])
def test_leaves(leaf):
    assert pytrees.children(leaf) is None


def test_what_torch_returns_from_max_is_rebuilt():
    found = torch.tensor([[1, 5], [7, 2]]).max(dim=1)
    again = pytrees.map_leaves(lambda leaf: leaf + 1, found)
    assert type(again) is type(found)
    assert again.values.tolist() == [6, 8]


def test_merge_goes_side_by_side():
    merged = pytrees.merge([{"a": 1, "b": (2,)}, {"b": (4,), "a": 3}], 0, [0, 1], lambda _, leaves: list(leaves))
    assert merged == {"a": [1, 3], "b": ([2, 4],)}


@pytest.mark.parametrize("other", [{"a": [1]}, {"a": [1, 2], "b": 1}, [1, 2], torch.zeros(2), {"a": 3}])
def test_merge_names_the_ranks_that_differ(other):
    with pytest.raises(CollectiveError, match=r"structure at data.*ranks 0,7 .*; rank 3 a"):
        pytrees.merge([{"a": [1, 2]}, other, {"a": [3, 4]}], 0, [0, 3, 7], lambda _, leaves: list(leaves))
