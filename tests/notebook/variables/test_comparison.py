"""Where a variable differs, in sentences."""

from __future__ import annotations

from typing import Any

import pytest

from nbcomm.notebook.variables.comparison import Comparison, Outcome
from nbcomm.notebook.variables.table import Variable

from .test_table import part as part_of
from .test_table import seen, variable


def found(first: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    plain = {"leaves": 1, "different": int(first is not None), "close": 0, "absolute": None, "relative": None}
    return {**plain, "first": first, **more}


def part(how: str, here: str, there: str, path: str = "", **more: Any) -> dict[str, Any]:
    return {"how": how, "path": path, "here": here, "there": there, **more}


ONE_APART = {"absolute": (1, "", []), "relative": (0.5, "", [])}

SAID = {
    "3 of 12 elements differ, first at [0, 2]: 1.0 here, 1.5 on rank 0; largest difference 0.5 at [1, 1], "
    "largest relative one 0.333333 at [0, 2]": found(
        part("elements", "1.0", "1.5", index=[0, 2], count=3, total=12),
        absolute=(0.5, "", [1, 1]),
        relative=(1 / 3, "", [0, 2]),
    ),
    "1.0 here, 2.0 on rank 0; difference 1 (relative 0.5)": found(
        part("elements", "1.0", "2.0", index=[], count=1, total=1), **ONE_APART
    ),
    "1 here, 2 on rank 0; difference 1 (relative 0.5)": found(part("value", "1", "2"), **ONE_APART),
    "int here, str on rank 0": found(part("type", "int", "str")),
    "the texts differ from position 1: 'ab' here, 'ac' on rank 0": found(
        part("text", "'ab'", "'ac'", index=[1], lengths=[2, 2])
    ),
    "1 of 2 parts differs; first ['k']: the texts differ from position 1: 'a' here, 'ac' on rank 0 "
    "(1 long here, 2 on rank 0)": found(part("text", "'a'", "'ac'", "['k']", index=[1], lengths=[1, 2]), leaves=2),
    "2 of 4 parts differ; first ['w'][3, 0]: 3.0 here, 4.0 on rank 0 (1 of 8 elements differs there)": found(
        part("elements", "3.0", "4.0", "['w']", index=[3, 0], count=1, total=8), leaves=4, different=2
    ),
    "1 of 3 elements differs, first at [2]: nothing here, 3 on rank 0; 2 here, 3 on rank 0": found(
        part("elements", "nothing", "3", index=[2], count=1, total=3, lengths=[2, 3])
    ),
    "1 of 2 parts differs; first ['b']: missing here, int on rank 0": found(
        part("lacking", "", "int", "['b']"), leaves=2
    ),
    "1 of 2 parts differs; first .b: int here, missing on rank 0": found(part("extra", "int", "", ".b"), leaves=2),
    "function f here differs from the one on rank 0": found(part("hidden", "function f", "function f")),
    "equal to rank 0 within 1; largest difference 0.5 at [1]": found(None, close=2, absolute=(0.5, "", [1])),
    "equal to rank 0 within 1": found(None, close=1),
    "another value than on rank 0, without a difference that can be shown": found(None),
}


@pytest.mark.parametrize("said", SAID)
def test_a_difference_in_words(said: str) -> None:
    text = str(Comparison("x", 0, variable("a", "b"), (Outcome((1,), SAID[said]),), 1.0))
    assert text == f"x (int), compared with rank 0:\nrank 1: {said}."


def test_all_ranks_have_their_say_once_and_in_order() -> None:
    outcome = Outcome((1, 3), found(part("value", "1", "2")))
    compared = Comparison("x", 0, variable("a", "b", "a", "b", "?", None), (outcome,))
    assert not compared.equal
    assert str(compared).splitlines() == [
        "x (int), compared with rank 0:",
        "ranks 1,3: 1 here, 2 on rank 0.",
        "rank 2: equal to rank 0.",
        "rank 4: cannot be compared: a lock.",
        "rank 5: x is not defined.",
    ]


def test_parts_of_a_sharded_value_are_compared_with_those_of_the_same_place() -> None:
    whole = Variable("w", {rank: part_of(*one) for rank, one in enumerate(("0a", "1b", "0a", "1c"))})
    outcome = Outcome((3,), found(part("elements", "2.0", "1.0", index=[0], count=1, total=4)), 1)
    compared = Comparison("w", 0, whole, (outcome,))
    assert not compared.equal
    assert str(compared).splitlines() == [
        "w (int), compared with rank 0:",
        "ranks 1-2: sharded as on rank 0.",
        "rank 3: 1 of 4 elements differs, first at [0]: 2.0 here, 1.0 on rank 1.",
    ]
    for values, more in (("0a 1b", ""), ("0a 1b 0a", ", and replicas of a part are equal")):
        alike = Variable("w", {rank: part_of(*one) for rank, one in enumerate(values.split())})
        said = str(Comparison("w", 0, alike, ()))
        last = len(values.split()) - 1
        assert said == f"w (int) is sharded on ranks 0-{last}: each has its part of one layout{more}."


def test_one_sentence_where_there_is_nothing_to_tell() -> None:
    assert str(Comparison("x", 0, variable("a", "a", "a"), ())) == "x (int) is equal on ranks 0-2."
    assert Comparison("x", 0, variable("a", "a", "a"), ()).equal
    alone = str(Comparison("x", 2, Variable("x", {2: seen()}), ()))
    assert alone == "x (int) was read on rank 2 only, so there is nothing to compare it with."
