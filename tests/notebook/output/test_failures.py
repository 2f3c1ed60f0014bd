"""The failures of a cell's ranks, as one exception."""

from __future__ import annotations

import pytest

from nbcomm.notebook.output.failures import cell_error, death_of, syntax_error, with_deaths_together
from nbcomm.protocol import Failure
from nbcomm.short_repr import COLOUR


def test_identical_tracebacks_are_shown_once_the_odd_one_first():
    common = Failure("CollectiveError", "rank 2 has failed", "Traceback A\nCollectiveError")
    odd = Failure("ZeroDivisionError", "division by zero", "Traceback B\nZeroDivisionError")
    error = cell_error({0: common, 1: common, 2: odd, 3: common}, range(4))
    assert str(error) == (
        "4 of 4 ranks failed: [2] ZeroDivisionError: division by zero; [0-1,3] CollectiveError: rank 2 has failed"
    )
    shown = "\n".join(error._render_traceback_())
    assert shown.index("Traceback B") < shown.index("Traceback A")
    assert shown.count("Traceback A") == 1
    assert shown.count("rank 2 has failed") == 0  # it stands in the tracebacks
    assert shown.endswith("\nCellError: 4 of 4 ranks failed: [2] ZeroDivisionError; [0-1,3] CollectiveError")
    assert error.ranks == [0, 1, 2, 3]


def test_a_cell_that_no_rank_could_compile_is_told_as_in_any_kernel():
    wrong = Failure("CellSyntaxError", "invalid syntax", "  Cell In[1], line 1\nSyntaxError: invalid syntax")
    error = syntax_error({0: wrong, 2: wrong}, [0, 2])
    assert str(error) == "invalid syntax"
    assert error._render_traceback_() == ["  Cell In[1], line 1", "SyntaxError: invalid syntax"]
    assert syntax_error({0: wrong}, [0, 2]) is None, "it is correct on rank 2, which has a syntax of its own"
    assert syntax_error({0: wrong, 2: Failure("SyntaxError", "", "")}, [0, 2]) is None
    assert syntax_error(dict.fromkeys((0, 2), Failure("SyntaxError", "in an eval", "")), [0, 2]) is None
    assert syntax_error({}, []) is None


def _raised(name: str, said: str, line: int = 1, cause: str = "") -> Failure:
    """A traceback as IPython makes it."""
    where = f"\x1b[32mCell In[3], line {line}\x1b[39m\n----> {line} raise"
    above = f"KeyError Traceback (most recent call last)\n{where}\nKeyError: {cause}\n\n" if cause else ""
    head = f"-----\n{above}\x1b[31m{name}\x1b[39m Traceback (most recent call last)\n{where}\n"
    return Failure(name, said, f"{head}\n\x1b[31m{name}\x1b[39m: {said}")


@pytest.mark.parametrize("cause", ["", "{rank}"])
def test_errors_that_differ_in_their_messages_only_are_one_traceback_and_a_row_for_each(cause: str) -> None:
    failures = {rank: _raised("ValueError", f"{rank // 2}", cause=cause.format(rank=rank)) for rank in range(4)}
    error = cell_error(failures, range(4))
    shown = COLOUR.sub("", "\n".join(error._render_traceback_()))
    assert shown.count("----> 1 raise") == 1 + bool(cause)
    assert shown.startswith("[0-3]\n-----\n")
    assert shown.endswith(
        "----> 1 raise\n\n[0-1] ValueError: 0\n[2-3] ValueError: 1\n\nCellError: 4 of 4 ranks failed: [0-3] ValueError"
    )
    assert str(error) == "4 of 4 ranks failed: [0-1] ValueError: 0; [2-3] ValueError: 1"


def test_errors_of_other_places_keep_their_tracebacks_and_a_row_has_all_lines_of_its_message() -> None:
    failures = {
        0: _raised("ValueError", "a\nb"),
        1: _raised("ValueError", "c"),
        2: _raised("ValueError", "a\nb", line=2),
        3: _raised("KeyError", "a"),
    }
    error = cell_error(failures, range(4))
    shown = COLOUR.sub("", "\n".join(error._render_traceback_()))
    assert shown.count("Traceback (most") == 3
    assert "[0] ValueError: a\n    b\n[1] ValueError: c\n" in shown
    assert shown.index("[2]") < shown.index("[0-1]"), "the odd ones come first"
    assert shown.endswith("CellError: 4 of 4 ranks failed: [0-2] ValueError; [3] KeyError")


def test_many_different_failures_stay_readable():
    failures = {rank: Failure("ValueError", f"bad {rank}\nmore", f"Traceback {rank}\n" * 20) for rank in range(64)}
    error = cell_error(failures, range(64))
    assert str(error).endswith("; and 61 more")
    assert len(error._render_traceback_()) < 200
    assert len(error.tracebacks) == 64
    one_place = cell_error({rank: _raised("ValueError", f"{rank}") for rank in range(200)}, range(200))
    assert len(one_place._render_traceback_()) < 80
    assert "(and 136 more messages)" in one_place._render_traceback_()


def test_ranks_that_died_have_one_failure_and_come_first():
    causes = dict.fromkeys((1, 2, 3), "was lost with node 1 (b), which does not answer") | {4: "was killed by SIGKILL"}
    hang = Failure("HangError", "barrier #1 can never complete", "HangError")
    failures = {0: hang, **{rank: death_of([rank], causes) for rank in causes}}
    told = with_deaths_together(failures, causes)
    assert told[1] == told[4]
    assert told[1].message == (
        "Ranks 1-3 were lost with node 1 (b), which does not answer, and rank 4 was killed by SIGKILL. Type "
        "%distributed heal to put new processes in their places."
    )
    assert str(cell_error(told, range(5), [0])).startswith("4 of 5 ranks failed: [1-4] RankDiedError: Ranks 1-3 were ")
    assert cell_error(told, range(5), [0])._render_traceback_()[-1] == (
        "CellError: 4 of 5 ranks failed: [1-4] RankDiedError; 1 other was stopped\nbecause of them"
    )


def test_what_a_rank_raised_before_it_died_is_its_failure():
    raised = Failure("ValueError", "no", "Traceback")
    causes = {0: "was killed", 1: "was killed"}
    told = with_deaths_together({0: raised, 1: death_of([1], causes)}, causes)
    assert told == {0: raised, 1: death_of([1], causes)}


def test_where_heal_cannot_help_the_remedy_is_another_one_also_if_that_is_known_only_later():
    causes = dict.fromkeys((1, 2, 3), "was lost with node 1 (b), which was told to end")
    failures = {rank: death_of([rank], causes) for rank in causes}
    told = with_deaths_together(failures, causes, lambda rank: "Type %distributed restart." if rank > 1 else "")
    assert told[1] == failures[1]
    assert told[2] == told[3]
    assert told[2].message == ("Ranks 2-3 were lost with node 1 (b), which was told to end. Type %distributed restart.")


def test_failures_that_differ_in_the_address_of_an_object_are_one():
    texts = [f"<__main__.A object at 0x7f0{rank}>" for rank in range(3)]
    failed = {rank: Failure("KeyError", text, f"Traceback …\nKeyError: {text}") for rank, text in enumerate(texts)}
    error = cell_error(failed, range(4))
    assert str(error) == "3 of 4 ranks failed: [0-2] KeyError: <__main__.A object at 0x…>"
    assert error.tracebacks[1].endswith(texts[1]), "each rank's own is kept"


HANG = Failure(
    "HangError", "all_reduce #1 was cut off by the death of rank 5.", "HangError: all_reduce #1 was cut off …"
)
BAD = Failure("ValueError", "bad", "Traceback\nValueError: bad")


def test_who_was_only_stopped_does_not_count_as_failed_and_comes_last():
    others = [rank for rank in range(16) if rank != 5]
    error = cell_error({**dict.fromkeys(others, HANG), 5: BAD}, range(16), others)
    assert str(error) == "1 of 16 ranks failed: [5] ValueError: bad; 15 others were stopped because of it"
    *shown, last = error._render_traceback_()
    assert last == "CellError: 1 of 16 ranks failed: [5] ValueError; 15 others were stopped because\nof it"
    text = "\n".join(shown)
    assert text.index("ValueError: bad") < text.index("HangError: all_reduce #1 was cut off"), (
        "where they were is shown"
    )
    assert error.ranks == list(range(16)), "none of them has finished the cell"


def test_the_stopped_come_last_even_if_they_are_fewer():
    error = cell_error({0: HANG, 1: BAD, 2: BAD}, range(4), [0])
    assert str(error) == "2 of 4 ranks failed: [1-2] ValueError: bad; 1 other was stopped because of them"
    assert error._render_traceback_()[0].endswith("[1-2]\x1b[0m")


def test_who_was_interrupted_by_hand_does_not_count_as_failed():
    pressed = Failure("KeyboardInterrupt", "", "KeyboardInterrupt")
    error = cell_error({0: pressed, 1: BAD, 2: pressed}, range(3), [], [0, 2])
    assert str(error) == "1 of 3 ranks failed: [1] ValueError: bad; 2 others were interrupted"


def test_where_nobody_is_to_blame_all_have_failed():
    error = cell_error({0: HANG, 2: HANG}, range(3), [0, 2])
    assert str(error).startswith("2 of 3 ranks failed: [0,2] HangError: ")
