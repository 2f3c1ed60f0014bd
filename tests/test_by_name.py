"""Functions that are called by their names."""

from __future__ import annotations

import pickle

import pytest

from nbcomm.by_name import ByName, values
from nbcomm.errors import TransferError


def refusing(number: int) -> int:
    if number > 1:
        raise TransferError("No number above 1 travels.")
    return number


def on_a_rank(number: int) -> object:
    return pickle.loads(pickle.dumps(ByName(f"{__name__}.refusing")))(number)


def test_what_it_returns_comes_back() -> None:
    assert values([on_a_rank(0), on_a_rank(1)]) == [0, 1]  # type: ignore[list-item]


def test_what_it_refuses_is_raised_as_there() -> None:
    with pytest.raises(TransferError, match="No number above 1"):
        values([on_a_rank(0), on_a_rank(2)])  # type: ignore[list-item]


def test_it_is_not_called_here() -> None:
    with pytest.raises(NotImplementedError, match="on ranks only"):
        ByName("nbcomm.measures.times.of_copy")(8)
