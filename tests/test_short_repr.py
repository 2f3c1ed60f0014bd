"""Values in few characters."""

from __future__ import annotations

import math
from collections import namedtuple

import numpy as np
import pytest
import torch

from nbcomm.short_repr import detailed, fitted, size_of, sized, sketch, told_apart

Point = namedtuple("Point", "x y")  # noqa: PYI024 - any tuple of its own class


class Rude:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.tensor(6.0), "6"),
        (torch.tensor([6.0, 6.5]), "[6 6.5]"),
        (torch.arange(10), "[0 1 2 … 9] of 10"),
        (torch.arange(6).reshape(2, 3), "[0 1 2 … 5] of 2×3"),
        (torch.zeros(2, 2), "[0 0 0 0] of 2×2"),
        (torch.zeros(0, 3), "empty 0×3"),
        (torch.tensor(2**60), "1152…6976"),
        (torch.tensor([True, False]), "[True False]"),
        (torch.tensor(1 + 2j), "1+2j"),
        (torch.ones(3, requires_grad=True), "[1 1 1]"),
        (np.float32(0.1), "0.1"),
        (np.array(["a"]), "[a]"),
        (math.nan, "nan"),
        (None, "None"),
        (True, "True"),
        (b"abc", "3 bytes"),
        ([], "[]"),
        ({}, "{}"),
        ({"a": 1, "b": 2, "c": 3, "d": 4}, "{a: 1, b: 2, c: 3, …}"),
        (Point(1, 2), "[1 2]"),
        (Rude(), "<Rude>"),
    ],
)
def test_a_value_in_few_characters(value: object, text: str) -> None:
    assert sketch(value) == text


def test_nothing_is_long() -> None:
    deep: list[object] = []
    for _ in range(50):
        deep = [deep] * 6
    for value in ("x" * 10_000, list(range(10_000)), dict.fromkeys(range(99), "y" * 99), deep, "äö" * 99):
        assert len(sketch(value)) < 100


def test_bytes_are_those_of_the_data() -> None:
    assert size_of({"a": torch.zeros(4), "b": [np.zeros(2), 1, "text", b"xyz", None]}) == 16 + 16 + 8 + 3


def test_what_cannot_be_sketched_is_known_by_its_class() -> None:
    class Odd:
        shape = property(lambda _: 1 / 0)

        def tolist(self) -> list[int]:
            return []

    assert sketch(Odd()) == "<Odd>"
    assert sketch([1, Odd()]) == "[1 <Odd>]"
    assert sketch(10**9999) == "a number of 33,216 bits"
    assert len(sketch({"k" * 10**6: 1})) < 100


# ── values of several ranks, side by side ───────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(1000),
        torch.zeros(5000),
        torch.arange(6).reshape(2, 3),
        torch.zeros(2, 2),
        torch.tensor(7.5),
        torch.zeros(0, 3),
        torch.zeros(3, 2000).T,
        np.arange(1025),
        list(range(1024)),
        [[1, 2, 3], [4], [5], [6], [7], [8]],
        [1, 2],
        {"a": 1, "b": 2, "c": 3, "d": 4},
        "x" * 3000,
        "short",
        2**80,
        None,
        Rude(),
    ],
)
def test_a_value_that_is_like_the_others_is_written_as_if_it_were_alone(value: object) -> None:
    assert told_apart([detailed(value)]) == [sketch(value)]
    assert told_apart([detailed(value)] * 3) == [sketch(value)] * 3


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (torch.zeros(256, 1024), "256×1024 float32, 1 MiB"),
        (torch.zeros(6, dtype=torch.bfloat16), "6 bfloat16, 12 B"),
        (np.zeros((2, 3), dtype=bool), "2×3 bool, 6 B"),
        (torch.zeros(2, 2), ""),
        ([0] * 1000, ""),
        ("x" * 3000, ""),
    ],
)
def test_behind_a_large_array_is_its_size(value: object, size: str) -> None:
    text = detailed(value)
    assert sized(text)[1] == size
    assert told_apart([text]) == [sketch(value)]


def test_long_values_show_where_they_first_differ() -> None:
    rows = [torch.zeros(1000) for _ in range(4)]
    rows[2][500] = 7
    rows[3][800] = 5
    short = told_apart([detailed(row) for row in rows])
    assert short == ["[… 0 at 500 …] of 1000", "[… 0 at 500 …] of 1000", "[… 7 at 500 …] of 1000", short[0]]
    square = [row.reshape(10, 100) for row in rows]
    assert told_apart([detailed(row) for row in square])[2] == "[… 7 at 5,0 …] of 10×100"
    assert told_apart([detailed(row.tolist()) for row in rows])[2] == "[… 7 at 500 …] of 1000"
    names = [{"a": 1, "b": 2, "c": 3, "rank": rank, "z": 0} for rank in range(2)]
    assert told_apart([detailed(name) for name in names]) == ["{…, rank: 0, …}", "{…, rank: 1, …}"]
    # Of another length it is another kind: it differs all over.
    assert told_apart([detailed(rows[0]), detailed(torch.zeros(999))]) == ["[0 0 0 … 0] of 1000", "[0 0 0 … 0] of 999"]


def test_texts_that_begin_alike_show_what_follows() -> None:
    paths = [f"/data/experiments/2024-01-01/resnet/rank-{rank}/checkpoint.pt" for rank in (0, 11)]
    assert told_apart([detailed(path) for path in paths]) == ["'…/rank-0/checkpoint.pt'", "'…/rank-11/checkpoint.pt'"]
    long = ["x" * 900 + letter * 90 for letter in "ab"]
    for text, letter in zip(told_apart([detailed(text) for text in long]), "ab", strict=True):
        assert letter in text
        assert len(text) <= 28
    assert fitted(["[1000 2000 3000 4]", "[1000 2000 3000 5]", "[1]"], 10) == ["… 4]", "… 5]", "[1]"]
    assert fitted(["abcdefgh"], 4) == ["abc…"]


def test_what_is_told_apart_is_never_long() -> None:
    values = [
        [object()] * 99,
        {str(i): "y" * 99 for i in range(2000)},
        "äö" * 9999,
        list(range(10**5)),
        [["x" * 99] * 9],
    ]
    for value in values:
        text = detailed(value)
        assert len(text) < 120_000
        assert all(len(short) <= 80 for short in told_apart([text, detailed([1] * 99)]))
