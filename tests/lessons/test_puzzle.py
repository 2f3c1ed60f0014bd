"""What a puzzle sees of a trial, and of a cell."""

from __future__ import annotations

from nbcomm.lessons import Cell, Collective, FunctionPuzzle, Trial


class Sorted(FunctionPuzzle):
    """Sort.

    Quickly.
    """

    asks = "sort_all(numbers)"


def trial(*names: str) -> Trial:
    return Trial([(), ()], [], [[Collective(name, 8) for name in names], [Collective("barrier")]])


def test_a_function_puzzle_has_the_name_of_its_function_and_the_law_of_its_docstring() -> None:
    assert Sorted.name == "sort_all"
    assert Sorted.law() == "Sort. Quickly."


def test_a_trial_counts() -> None:
    one = trial("send", "all_reduce", "all_reduce")
    assert one.size == 2
    assert one.counts(0) == {"send": 1, "all_reduce": 2}
    assert (one.brought(0), one.brought(1)) == (24, 0)
    assert [call.sends for call in one.calls[0]] == [True, False, False]
    assert [Collective(name).is_message for name in ("isend", "recv", "barrier")] == [True, True, False]


def test_a_trial_says_what_was_called_beside_what_is_asked_for() -> None:
    assert trial("barrier").only(barrier=1) == ""
    assert trial("send", "barrier").only(barrier=1) == (
        "rank 0 called 1 barrier and 1 send, where 1 barrier is asked for"
    )
    assert trial().only(barrier=1) == "rank 0 called no collective, where 1 barrier is asked for"


def test_a_cell_has_as_many_lines_as_say_something() -> None:
    assert Cell("# a comment\n\nif rank != 2:\n    barrier()  # here\n", "").lines == 2
