"""Values in few characters."""

from __future__ import annotations

import math
from collections import namedtuple

import numpy as np
import pytest
import torch

from nbcomm.sketch import size_of, sketch

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
