"""Whether a learner's result is right, and where it is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nbcomm.lessons.compare import ANYTHING, difference

ONE = torch.tensor([1.0, 2.0])


class Odd:
    """Cannot be compared."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no")

    __hash__ = None  # type: ignore[assignment]


RIGHT = [
    (3, 3),
    (3.0, 3),
    (torch.tensor(3), 3),
    (3, torch.tensor(3)),
    (torch.tensor([2.5]), 2.5),
    (1.0 + 1e-6, 1.0),
    (float("nan"), float("nan")),
    ((1, "a"), [1, "a"]),
    ({"a": [1.0]}, {"a": (1,)}),
    (ONE + 1e-6, ONE),
    (ONE.clone().requires_grad_(), ONE),
    (torch.tensor([float("nan")]), torch.tensor([float("nan")])),
    (None, None),
    ([1, "what it is"], [1, ANYTHING]),
]

WRONG = [
    (4, 3, "the result is 4, where 3 is right"),
    (None, [1], "the result is None, where [1] is right"),
    ("3", 3, "the result is '3', where 3 is right"),
    (True, 1.5, "the result is True, where 1.5 is right"),
    ([1], 1, "the result is [1], where 1 is right"),
    (3, [3], "the result is 3, where [3] is right"),
    ([1, 2], [1], "the result has 2 items, where 1 is right: [1 2]"),
    ([1], [1, 2], "the result has 1 item, where 2 are right: [1]"),
    ([1, 5], [1, 2], "item 1 is 5, where 2 is right"),
    ([[1], [5]], [[1], [2]], "item 1, item 0 is 5, where 2 is right"),
    ({"a": 1}, {"b": 1}, "the result has the keys ['a'], where ['b'] are right"),
    ({"a": 1}, {"a": 2}, "item 'a' is 1, where 2 is right"),
    ([1], {"a": 2}, "the result is [1], where {a: 2} is right"),
    (ONE.reshape(2, 1), ONE, "the result has the shape (2, 1), where (2,) is right"),
    (ONE.double(), ONE, "the result has the dtype float64, where float32 is right"),
    (ONE + torch.tensor([0.0, 1.0]), ONE, "item [1] is 3, where 2 is right"),
    (torch.tensor(3), torch.tensor(4), "the result is 3, where 4 is right"),
    ([1.0, 2.0], ONE, "the result is the list [1 2], where the Tensor [1 2] is right"),
    (Odd(), "x", "where 'x' is right"),
    (Odd(), Odd(), "is right"),
]


@pytest.mark.parametrize(("got", "right"), RIGHT, ids=str)
def test_it_is_right(got: Any, right: Any) -> None:
    assert difference(got, right) == ""


@pytest.mark.parametrize(("got", "right", "said"), WRONG, ids=[said for *_, said in WRONG])
def test_it_says_where_it_is_wrong(got: Any, right: Any, said: str) -> None:
    assert said in difference(got, right)


def test_it_may_be_near() -> None:
    assert difference(105, 100.0, near=0.1) == ""
    assert difference(95.0, 100.0, near=0.1) == ""
    assert difference(120, 100.0, near=0.1) == "the result is 120, where 100 is right"
