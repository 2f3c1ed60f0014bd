"""What is said of ranks that meet in one collective and do not do the same."""

from __future__ import annotations

from nbcomm.analysis import mismatch
from nbcomm.sentences import WIDTH


def test_ranks_in_different_calls() -> None:
    said = mismatch.other_call("barrier", 2, "the world", [0, 1, 2], ["barrier", "all_reduce", "barrier"])
    assert said.splitlines() == [
        "barrier #2 of the world is not the same on all ranks:",
        "  ranks 0,2 called barrier",
        "  rank 1 called all_reduce",
        "No rank continued past it.",
    ]


def test_ranks_in_different_methods() -> None:
    said = mismatch.other_method([0, 1, 2], ["gather()", "scatter()", "gather()"])
    assert said.splitlines() == [
        "The ranks are not in the same collective:",
        "  ranks 0,2 called gather()",
        "  rank 1 called scatter()",
        "Nothing was moved.",
    ]


def test_ranks_with_different_ops() -> None:
    said = mismatch.other_op([0, 1, 2], ["reduce(op=sum)", "reduce(op=max)", "reduce(op=max)"])
    assert said.splitlines() == [
        "The ranks called one reduction in different ways:",
        "  rank 0 called reduce(op=sum)",
        "  ranks 1-2 called reduce(op=max)",
        "Nothing was moved.",
    ]


def test_ranks_with_different_data() -> None:
    said = mismatch.other_data("x[0]", [1, 3], ["an int", "a dict"])
    assert said.splitlines() == [
        "The ranks passed data that differs at x[0]:",
        "  rank 1 an int",
        "  rank 3 a dict",
        "Pass the same structure, shapes and dtypes on every rank.",
    ]


def test_ranks_with_data_that_cannot_be_joined() -> None:
    said = mismatch.not_joinable("x", [0, 1], ["float32 (2,)", "float32 (3,)"], mismatch.STACK)
    rows = "  rank 0 float32 (2,)\n  rank 1 float32 (3,)\n"
    assert said == f"The ranks passed data that cannot be joined at x:\n{rows}{mismatch.STACK}."


def test_a_row_that_is_too_long_breaks_between_words() -> None:
    said = mismatch.other_method([0, 1], ["gather of " + "a very long name " * 6, "scatter"])
    assert said.splitlines()[1].startswith("  rank 0 called gather of a very")
    assert said.splitlines()[2].startswith("    ")
    assert all(len(line) <= WIDTH for line in said.splitlines())
