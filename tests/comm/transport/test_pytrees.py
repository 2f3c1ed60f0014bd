"""Nested data keeps its structure and its types."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from nbcomm.comm.transport import pytrees
from nbcomm.errors import CollectiveError
from nbcomm.rank_spec import by_rank

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


@dataclass
class Unset:
    x: int = 1
    y: int = field(init=False)


class Pair(tuple):
    __slots__ = ()


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


@pytest.mark.parametrize(
    "leaf", [1, "text", b"", None, {1, 2}, torch.zeros(2), np.zeros(2), torch.Size([2]), Pair([1]), Batch]
)
def test_leaves(leaf):
    assert pytrees.children(leaf) is None


def test_what_torch_returns_from_max_is_rebuilt():
    found = torch.tensor([[1, 5], [7, 2]]).max(dim=1)
    again = pytrees.map_leaves(lambda leaf: leaf + 1, found)
    assert type(again) is type(found)
    assert again.values.tolist() == [6, 8]


@pytest.mark.parametrize("node", NODES, ids=repr)
def test_leaves_can_be_taken_out_and_put_back(node):
    values = pytrees.flat(node)
    assert values == [leaf for _, leaf in pytrees.leaves(node)]
    assert pytrees.fill(node, iter(values)) == node
    again = pytrees.fill(node, iter(range(100, 100 + len(values))))
    assert pytrees.flat(again) == list(range(100, 100 + len(values)))


def test_a_field_that_is_not_set_is_passed_over():
    assert list(pytrees.leaves(Unset(5))) == [("data.x", 5)]
    assert pytrees.map_leaves(lambda leaf: leaf + 1, Unset(5)).x == 6


def test_what_a_list_of_ones_own_carries_is_kept():
    stack = Stack([1, 2])
    stack.name = "mine"
    again = pytrees.map_leaves(lambda leaf: leaf + 1, stack)
    assert (again, again.name, stack) == ([2, 3], "mine", [1, 2])


def test_a_node_is_not_rebuilt_from_too_few_or_too_many_leaves():
    for node in ({"a": 1}, Batch(1, 2)):
        for values in ([], [1, 2, 3, 4]):
            with pytest.raises(ValueError, match="zip"):
                pytrees.rebuild(node, values)


def test_an_outline_tells_keys_types_and_leaves():
    data = {"b": [1, (2,)], "a": Frozen(3)}
    inner = "'a':tests.comm.transport.test_pytrees.Frozen('x':3),'b':builtins.list(0:1,1:builtins.tuple(0:2))"
    assert pytrees.outline(data, str) == f"builtins.dict({inner})"
    assert pytrees.outline(4, str) == "4"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.zeros(2, 3), "a float32 tensor of shape (2, 3)"),
        (np.zeros((2, 3), "int16"), "a int16 array of shape (2, 3)"),
        ({"b": 1, "a": 2}, "a dict with the keys 'a', 'b'"),
        (dict.fromkeys(range(8)), "a dict with the keys 0, 1, 2, 3, 4, 5, 6, 7"),
        (dict.fromkeys(range(9)), "a dict with the keys 0, 1, 2, 3, 4, 5, 6, 7 and 1 more"),
        (OrderedDict(a=1), "an OrderedDict with the keys 'a'"),
        ({}, "an empty dict"),
        ([1, 2], "a list of 2"),
        (Point(1, 2), "a Point of 2"),
        (Unset(), "an Unset"),
        (type("Xy", (), {})(), "a Xy"),
        (3, "an int"),
        ("text", "a str"),
        (None, "None"),
    ],
)
def test_a_value_in_a_few_words(value, words):
    assert pytrees.describe(value) == words


def test_a_merge_has_the_classes_and_the_order_of_ones_own():
    first, second = {"b": [1], "a": Stack([2])}, {"a": Stack([3]), "b": [4]}
    for own, keys in [(0, ["b", "a"]), (1, ["a", "b"])]:
        merged = pytrees.merge([first, second], own, partial(by_rank, [0, 1]), lambda _, leaves: sum(leaves))
        assert (merged, list(merged), type(merged["a"])) == ({"a": [5], "b": [5]}, keys, Stack)


def test_a_merge_tells_where_each_leaf_is():
    paths = []
    data = {"a": [1, Batch(2, (3,))]}
    pytrees.merge([data, data], 0, partial(by_rank, [0, 1]), lambda path, _: paths.append(path))
    assert paths == [path for path, _ in pytrees.leaves(data)]
    pytrees.merge([1, 2], 0, partial(by_rank, [0, 1]), lambda path, _: paths.append(path), "out")
    assert paths[-1] == "out"


def test_lists_and_tuples_are_of_different_structure():
    with pytest.raises(CollectiveError, match="rank 0 a list of 1; rank 1 a tuple of 1"):
        pytrees.merge([[1], (1,)], 0, partial(by_rank, [0, 1]), lambda _, leaves: leaves)


def test_keys_are_walked_in_order_those_of_several_types_by_type():
    assert [key for key, _ in pytrees.children({"b": 1, "a": 2})] == ["a", "b"]
    assert [key for key, _ in pytrees.children({"b": 1, 10: 2, "a": 3, 9: 4, b"c": 5})] == [b"c", 10, 9, "a", "b"]


@pytest.mark.parametrize("own", [0, 1])
def test_a_merge_tells_where_the_ranks_differ_and_what_to_do(own):
    with pytest.raises(CollectiveError) as refused:
        pytrees.merge([{"a": [1, [2]]}, {"a": [1, 2]}], own, partial(by_rank, [4, 7]), lambda _, leaves: leaves)
    assert str(refused.value) == (
        "The ranks passed data of different structure at data['a'][1]:\nrank 4 a list of 1; rank 7 an int\n"
        "Pass the same structure on every rank,\nor mode='object' to collect whatever each rank has."
    )


def test_merge_goes_side_by_side():
    merged = pytrees.merge(
        [{"a": 1, "b": (2,)}, {"b": (4,), "a": 3}], 0, partial(by_rank, [0, 1]), lambda _, leaves: list(leaves)
    )
    assert merged == {"a": [1, 3], "b": ([2, 4],)}


@pytest.mark.parametrize("other", [{"a": [1]}, {"a": [1, 2], "b": 1}, [1, 2], torch.zeros(2), {"a": 3}])
def test_merge_names_the_ranks_that_differ(other):
    with pytest.raises(CollectiveError, match=r"(?s)structure at data.*ranks 0,7 .*; rank 3 a"):
        pytrees.merge(
            [{"a": [1, 2]}, other, {"a": [3, 4]}], 0, partial(by_rank, [0, 3, 7]), lambda _, leaves: list(leaves)
        )
