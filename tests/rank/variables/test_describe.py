"""What a rank says of its variables: in plain words and numbers, whatever they are."""

from __future__ import annotations

import builtins
import pickle
import sys
import threading
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from nbcomm.errors import TransferError
from nbcomm.rank.variables.describe import describe, find, survey, users


class Odd:
    """Lies about all that is asked of it."""

    shape = "round"

    def __len__(self) -> int:
        raise RuntimeError("no")

    def __repr__(self) -> str:
        return "odd\x1b[31m\n<b>\ud800"


def greet(name: str, times: int = 1) -> None:
    """A function."""


def dense(shape: tuple[int, ...], dtype: str, nbytes: int | None, value: str) -> dict[str, Any]:
    said = {"type": "Tensor", "shape": shape, "dtype": dtype, "device": "cpu", "value": value}
    return said if nbytes is None else {**said, "nbytes": nbytes}


MODEL = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (1, {"type": "int", "nbytes": 8, "value": "1"}),
        (2**100, {"type": "int", "nbytes": 13, "value": "1267…5376"}),
        (10**9999, {"type": "int", "nbytes": 4153, "value": "a number of 33,216 bits"}),
        (True, {"type": "bool", "nbytes": 1, "value": "True"}),
        (1.5, {"type": "float", "nbytes": 8, "value": "1.5"}),
        (2j, {"type": "complex", "nbytes": 16, "value": "0+2j"}),
        ("text", {"type": "str", "length": 4, "value": "'text'"}),
        (b"abc", {"type": "bytes", "length": 3, "value": "3 bytes"}),
        (None, {"type": "NoneType", "value": "None"}),
        ([1, "a"], {"type": "list", "length": 2, "value": "[1 'a']"}),
        (torch.tensor(2.5), dense((), "float32", 4, "2.5")),
        (torch.zeros(0, 3), dense((0, 3), "float32", 0, "empty 0×3")),
        (torch.ones(2, 2, dtype=torch.bfloat16), dense((2, 2), "bfloat16", 8, "[1 1 1 1] of 2×2")),
        (torch.ones(3, requires_grad=True), dense((3,), "float32", 12, "[1 1 1]")),
        (torch.eye(2).to_sparse(), dense((2, 2), "float32", None, "sparse_coo tensor")),
        (np.arange(3.0), {"type": "ndarray", "shape": (3,), "dtype": "float64", "nbytes": 24, "value": "[0 1 2]"}),
        (np.float32(0.1), {"type": "float32", "shape": (), "dtype": "float32", "nbytes": 4, "value": "0.1"}),
        (MODEL, {"type": "Sequential", "device": "cpu", "parameters": 15, "nbytes": 92}),
        (greet, {"type": "function", "value": "greet(name: 'str', times: 'int' = 1) -> 'None'"}),
        (Odd, {"type": "type", "value": "tests.rank.variables.test_describe.Odd"}),
        (np, {"type": "module", "value": "numpy"}),
        (Odd(), {"type": "Odd", "value": "odd <b>\ufffd"}),
        (range(5), {"type": "range", "length": 5, "value": "range(0, 5)"}),
        (object(), {"type": "object", "value": "<object object>"}),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_is_said_of_a_value(value: Any, said: dict[str, Any]) -> None:
    found = describe(value, hashes=True)
    assert isinstance(found.pop("digest"), bytes)
    if value is MODEL:
        assert found.pop("value").startswith("Sequential(")
    assert found == said
    assert "digest" not in describe(value, hashes=False)


@pytest.mark.parametrize("value", [threading.Lock(), (i for i in ()), torch.empty(2, device="meta")])
def test_what_cannot_be_compared_is_described_all_the_same(value: Any) -> None:
    found = describe(value, hashes=True)
    assert found["note"].startswith("cannot be compared: ")
    assert found["type"] == type(value).__name__


def test_an_object_that_makes_up_what_it_is_asked_for_is_not_asked() -> None:
    mock = MagicMock()
    describe(mock, hashes=True)
    assert not mock._mock_children.keys() & {"shape", "tolist", "to_local", "dtype"}


def test_the_answer_is_plain() -> None:
    """The notebook unpickles it, and is not to import torch, nor what the user has."""
    scope = {
        "x": torch.ones(2),
        "a": np.float32(1),
        "m": MODEL,
        "o": Odd(),
        "size": torch.Size([2]),
        "lock": threading.Lock(),
    }
    text = pickle.dumps(survey(scope, {}, [], hashes=True), protocol=4)
    assert not any(word in text for word in (b"torch\x94", b"numpy", b"tests."))


def test_modules_and_what_one_has_under_this_name_are_imports() -> None:
    own = type("Own", (), {"__module__": "__main__"})
    scope = {"np": np, "greet": greet, "loss": greet, "Any": Odd, "Odd": Odd, "Own": own, "relu": torch.relu, "x": 1}
    found = survey(scope, {}, [], hashes=True)
    assert [name for name, said in found.items() if said.get("imported")] == ["Odd", "greet", "np", "relu"]


def test_users_are_those_of_whos() -> None:
    shell = {"In": [], "exit": 1, "shadowed": 1}
    scope = {**shell, "x": 1, "_private": 1, "__builtins__": {}, "f": greet, "np": np, "shadowed": 2}
    assert users(scope, shell) == ["f", "np", "shadowed", "x"]


def exit_now() -> None:
    sys.exit(3)


SCOPE: dict[str, object] = {
    "__builtins__": builtins,
    "x": [1, {"a": 2}],
    "n": 1,
    "odd name!": 7,
    "rank": 3,
    "exit_now": exit_now,
}


@pytest.mark.parametrize(
    ("name", "value"),
    [("n", 1), ("rank", 3), ("x[1]['a']", 2), ("x[n]", {"a": 2}), ("odd name!", 7), ("len(x) + n", 3), (" n ", 1)],
)
def test_names_and_expressions_are_found(name: str, value: object) -> None:
    assert find(dict(SCOPE), name) == value


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nothere", "nothere is not defined"),
        ("n + nothere", "nothere is not defined"),
        ("x[9]", r"x\[9\] raises IndexError: list index out of range"),
        ("n.real.none", "raises AttributeError"),
        ("exit_now()", "raises SystemExit: 3"),
        ("n = 2", "n = 2 is neither a name nor an expression"),
        ("import os", "neither a name nor an expression"),
        ("x[", "neither a name nor an expression"),
        ("", "neither a name nor an expression"),
        ("n\0", "neither a name nor an expression"),
        ("await n", "neither|raises SyntaxError"),
        ("(m := 2)", "would assign a name"),
        ("[(m := i) for i in x]", "would assign a name"),
    ],
)
def test_what_is_not_there_is_said_and_nothing_changes(name: str, why: str) -> None:
    scope = dict(SCOPE)
    with pytest.raises(TransferError, match=why):
        find(scope, name)
    assert scope == SCOPE


def test_a_survey_names_what_is_absent() -> None:
    found = survey(dict(SCOPE), {}, ["n", "nothere"], hashes=False)
    assert found == {"n": {"type": "int", "nbytes": 8, "value": "1"}, "nothere": {"absent": "nothere is not defined"}}


def test_a_survey_marks_what_hides_a_name_of_nbcomms() -> None:
    ours = object()
    there = {"rank": 5, "send": ours, "mine": 1, "exit": 2}
    found = survey(there, {"rank": 0, "send": ours, "exit": 3}, [*there], hashes=False)
    assert [name for name, said in found.items() if said.get("hides")] == ["rank"]
