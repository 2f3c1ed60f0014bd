"""Where puzzles are found: in nbcomm's lessons, and in a teacher's file."""

from __future__ import annotations

import pytest

from nbcomm.errors import LessonError
from nbcomm.lessons.courses import describe, find, puzzles

MINE = '''"""A course of mine. It is short."""
from nbcomm.lessons import FunctionPuzzle, Prediction

class Base(Prediction):
    """No puzzle, for it has no name."""

class Guess(Base):
    """How many?"""
    name = "how_many"

class Twice(FunctionPuzzle):
    """Double it."""
    asks = "twice(x)"
    hints = ("Add it to itself.",)
'''


def test_all_puzzles_of_the_lessons_have_a_name_a_law_and_a_lesson() -> None:
    told = describe()
    assert len({each["name"] for each in told}) == len(told)
    for each in told:
        assert each["law"].endswith((".", "?")), each
        assert each["lesson"].startswith(("Lesson ", "Collectives, by hand")), each
        assert each["kind"] in {"function", "cell", "prediction"}
        assert each["hints"] or each["kind"] == "prediction"


def test_a_teachers_file_is_a_course() -> None:
    course = ("mine.py", MINE)
    assert [(lesson, puzzle.name) for lesson, puzzle in puzzles(course)] == [
        ("A course of mine", "how_many"),
        ("A course of mine", "twice"),
    ]
    (told,) = describe(course, "twice")
    assert (told["asks"], told["law"], told["hints"], told["solved"]) == (
        "twice(x)",
        "Double it.",
        ["Add it to itself."],
        False,
    )
    assert find("twice", course) is find("twice", course), "it is loaded once"


def test_a_file_that_was_edited_is_loaded_again() -> None:
    before = find("twice", ("mine.py", MINE))
    after = find("twice", ("mine.py", MINE.replace("Double it.", "Add it to itself.")))
    assert (before.law(), after.law()) == ("Double it.", "Add it to itself.")


def test_a_puzzle_that_does_not_exist_is_told_with_those_that_do() -> None:
    with pytest.raises(LessonError, match=r"There is no puzzle 'three'\. mine\.py has how_many, twice\."):
        find("three", ("mine.py", MINE))
    with pytest.raises(LessonError, match=r"There is no puzzle 'gatherall'\. Did you mean gather_all\? There are "):
        find("gatherall")
    with pytest.raises(LessonError, match=r"There are .*gather_all"):
        describe(None, "thrice")


def test_a_broken_file_is_told_with_its_error() -> None:
    with pytest.raises(LessonError, match=r"broken\.py cannot be read as puzzles: ZeroDivisionError: division by zero"):
        puzzles(("broken.py", "1 / 0"))
    with pytest.raises(LessonError, match=r"broken\.py cannot be read as puzzles: SyntaxError"):
        puzzles(("broken.py", "def"))
