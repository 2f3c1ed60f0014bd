"""What a learner types, and reads: with the ranks' side of it called here, in one process."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from nbcomm.errors import CellError, Interrupted, LessonError
from nbcomm.notebook.lessons import checking
from nbcomm.notebook.lessons.lessons import Lessons
from nbcomm.notebook.lessons.progress import Progress
from nbcomm.protocol import CallRecord

COURSE = '''"""A course of mine."""
from nbcomm.lessons import CellPuzzle, FunctionPuzzle, Prediction

class Twice(FunctionPuzzle):
    """Double it."""
    asks = "twice(x)"
    trials = 3
    hints = ("Add it.", "To itself.")
    def given(self, draw, shared, rank, size):
        return (draw.number(),)
    def right(self, given, rank):
        return 2 * given[rank][0]
    def complaint(self, trial):
        return trial.only()

class Quiet(CellPuzzle):
    """Write a cell that ends well."""
    name = "quiet"
    def complaint(self, cell):
        return "it ended with an error" if cell.said else ""

class Total(Prediction):
    """What is the total?"""
    name = "total"
    because = "So it is."
    def shown(self, variables, cell):
        return 6

class Share(Prediction):
    """Which share?"""
    name = "share"
    number = True
    def shown(self, variables, cell):
        return 3 / 7
'''


class FakeWorld:
    """Two ranks that answer what they are told to; what needs no rank is really done.

    Attributes:
        answers: what the next trials of the learner's function return.
        calls: what each of their ranks has called.
        cell: the last cell.
    """

    ranks: Sequence[int] = (0, 1)

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.calls: list[list[CallRecord]] = [[], []]
        self.cell = ("1 / 0", "ZeroDivisionError: division by zero")

    def trial(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        ranks: Sequence[int] | None = None,
        limit: float = 0.0,
        *,
        quiet: bool,
    ) -> tuple[list[Any], list[list[CallRecord]]]:
        if ranks is not None:
            return [pickle.loads(pickle.dumps(function))(*args)], [[]]
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return [(each, None) for each in answer], self.calls

    def last_cell(self) -> tuple[str, str]:
        return self.cell


RIGHT = {"given": "3", "wrong": "", "result": b""}
ONE_CALL = [CallRecord("barrier", "collective", "0", "0-1", 1, 1, 0.0, 1.0)]


@pytest.fixture
def world() -> FakeWorld:
    return FakeWorld()


@pytest.fixture
def lessons(world: FakeWorld, tmp_path: Path) -> Lessons:
    (tmp_path / "mine.py").write_text(COURSE)
    return Lessons(world, str(tmp_path / "mine.py"), Progress(tmp_path / "learner.jsonl"))  # type: ignore[arg-type]


def twice(world: FakeWorld, lessons: Lessons, *results: Any) -> checking.Outcome:
    world.answers = [results] * 3 if isinstance(results[0], dict) else list(results)
    return lessons.check("twice")


def test_a_right_function_is_right_after_all_its_trials(world: FakeWorld, lessons: Lessons) -> None:
    outcome = twice(world, lessons, RIGHT, RIGHT)
    assert outcome
    assert str(outcome) == "✓ twice: Right for 3 inputs on 2 ranks. Yours: no collective."
    assert world.answers == []


WRONG = {"given": "3", "wrong": "the result is 3, where 6 is right"}
RAISED = {"raised": "ValueError: no", "kind": "ValueError"}
HUNG = {"raised": "barrier #1 can never complete", "kind": "HangError"}


@pytest.mark.parametrize(
    ("results", "said", "mistake"),
    [
        (
            [RIGHT, WRONG],
            "Wrong on rank 1. For twice(3) on rank 1, the result is 3, where 6 is right.\nDouble it.",
            "another result",
        ),
        ([HUNG, RAISED], "It raised an error on rank 1.\nValueError: no", "raised ValueError"),
        ([RAISED, RAISED], "It raised an error on ranks 0-1.\nValueError: no", "raised ValueError"),
        ([HUNG, RIGHT], "It can never end.\nbarrier #1 can never complete", "can never end"),
        (
            [RIGHT, {"missing": True}],
            "Write twice(x) in a %%distributed cell; it is not there on rank 1 yet. Double it.",
            "not yet",
        ),
    ],
)
def test_what_is_wrong_is_told(world: FakeWorld, lessons: Lessons, results: list[Any], said: str, mistake: str) -> None:
    outcome = twice(world, lessons, *results)
    assert not outcome
    assert (outcome.said, outcome.mistake) == (said, mistake)


def test_right_results_by_other_calls_are_refused(world: FakeWorld, lessons: Lessons) -> None:
    world.calls = [ONE_CALL, []]
    outcome = twice(world, lessons, RIGHT, RIGHT)
    assert outcome.said == "Rank 0 called 1 barrier, where no collective is asked for.\nDouble it."
    assert outcome.mistake == "another way"


def test_ranks_that_end_are_told(world: FakeWorld, lessons: Lessons) -> None:
    outcome = twice(world, lessons, CellError("2 of 2 ranks failed", {0: "", 1: ""}))
    assert (outcome.said, outcome.mistake) == ("2 of 2 ranks failed", "a rank ended")


def test_what_takes_too_long_is_told(world: FakeWorld, lessons: Lessons) -> None:
    outcome = twice(world, lessons, TimeoutError())
    assert (outcome.said, outcome.mistake) == ("It did not end within 20 s, and was interrupted.", "did not end")


def test_an_interrupt_of_the_learners_is_one(world: FakeWorld, lessons: Lessons) -> None:
    with pytest.raises(Interrupted):
        twice(world, lessons, Interrupted("cell"))


def test_a_hint_is_offered_after_the_second_mistake_and_hints_come_one_at_a_time(
    world: FakeWorld, lessons: Lessons
) -> None:
    offer = "A hint: %distributed check twice --hint"
    assert offer not in twice(world, lessons, RIGHT, {"missing": True}).said
    assert offer not in twice(world, lessons, RIGHT, WRONG).said
    assert twice(world, lessons, RIGHT, WRONG).said.endswith(offer)
    assert lessons.hint("twice") == "Hint 1 for twice (1 more): Add it."
    assert lessons.hint("twice") == "Hint 2 for twice (it is the last): To itself."
    assert lessons.hint("twice") == "Hint 2 for twice (it is the last): To itself."
    assert offer not in twice(world, lessons, RIGHT, WRONG).said
    assert lessons.hint("quiet") == "There are no hints for quiet."


def test_a_cell_is_judged(world: FakeWorld, lessons: Lessons) -> None:
    assert str(lessons.check("quiet")) == "✗ quiet: It ended with an error."
    world.cell = ("1", "")
    assert str(lessons.check("quiet")) == "✓ quiet: The cell ended as it should."


def test_a_prediction_is_locked_and_compared(lessons: Lessons) -> None:
    assert lessons.check("total").said == (
        "You have not predicted yet. What is the total?\nType: %distributed predict total VALUE"
    )
    for nothing in ("", "..."):
        assert lessons.predict("total", nothing) == (
            "What is the total? Type what you predict: %distributed predict total VALUE"
        )
    assert lessons.predict("total", "3").startswith("You predict 3. ")
    assert lessons.predict("total", "6").startswith("You predicted 3, and a prediction stays. ")
    for _ in range(2):
        assert str(lessons.check("total")) == "✗ total: You predicted 3, but the run shows 6.\nSo it is."
    with pytest.raises(LessonError, match="twice is no prediction: write its function"):
        lessons.predict("twice", "3")


def test_a_right_prediction_is_right(lessons: Lessons) -> None:
    lessons.predict("total", "6.0")
    assert str(lessons.check("total")) == "✓ total: You predicted 6.0, and the run shows 6.\nSo it is."


@pytest.mark.parametrize("typed", ["500 KB", "3,5", "many", "1/0", "n ** 2", "%", "True", "2 ** 9 ** 9"])
def test_what_is_no_number_is_no_prediction_where_one_is_asked_for(lessons: Lessons, typed: str) -> None:
    said = lessons.predict("share", typed)
    assert said.startswith(f"{typed} is no number, and was not taken. Type one, such as 2, 0.5, 3/7 or 1e6: ")
    assert lessons.check("share").mistake == checking.NOT_YET


@pytest.mark.parametrize("typed", ["3/7", "3 / (4 + 3)", "-(3 - 6) / 7.0", "300/7 %", "3 * 7**-1"])
def test_a_number_may_be_typed_as_a_calculation(lessons: Lessons, typed: str) -> None:
    lessons.predict("share", typed)
    assert str(lessons.check("share")).startswith(f"✓ share: You predicted {typed}, and the run shows 0.4286.")


def test_the_overview_shows_how_far_a_learner_is(world: FakeWorld, lessons: Lessons) -> None:
    assert lessons.overview().splitlines() == [
        "A course of mine",
        "  – twice  twice(x)",
        "  – quiet",
        "  – total",
        "  – share",
        "0 of 4 are right.",
    ]
    twice(world, lessons, RIGHT, WRONG)
    lessons.hint("twice")
    lessons.check("quiet")
    world.cell = ("1", "")
    lessons.check("quiet")
    lessons.predict("total", "a lot of it")
    assert lessons.overview().splitlines() == [
        "A course of mine",
        "  ✗ twice  1 try, 1 hint",
        "  ✓ quiet  2 tries",
        "  … total  predicted a lot of it",
        "  – share",
        "1 of 4 are right.",
    ]
    lessons.check("total")
    assert "  ≠ total  predicted a lot of it" in lessons.overview()


def test_progress_that_cannot_be_kept_is_told_with_the_outcome(world: FakeWorld, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(COURSE)
    (tmp_path / "file").write_text("")
    progress = Progress(tmp_path / "file" / "learner.jsonl")
    lessons = Lessons(world, str(tmp_path / "mine.py"), progress)  # type: ignore[arg-type]
    outcome = twice(world, lessons, RIGHT, RIGHT)
    assert outcome
    assert "\nYour progress was not kept: " in outcome.said


def test_a_course_that_is_not_there_is_told(world: FakeWorld) -> None:
    with pytest.raises(LessonError, match=r"The puzzles in /nowhere\.py cannot be read: "):
        Lessons(world, "/nowhere.py")  # type: ignore[arg-type]


def test_a_puzzle_that_is_broken_is_no_mistake_of_the_learner(
    world: FakeWorld, lessons: Lessons, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(COURSE.replace('return "it ended', 'return 1 / 0, "it ended'))
    broken = Lessons(world, str(tmp_path / "mine.py"), Progress(tmp_path / "learner.jsonl"))  # type: ignore[arg-type]
    with pytest.raises(LessonError, match="The puzzle quiet itself raised ZeroDivisionError: division by zero"):
        broken.check("quiet")
    assert Progress(tmp_path / "learner.jsonl").read() == {}
