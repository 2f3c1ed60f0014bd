"""What the ranks do for a check: they call the learner's function, and compare.

The notebook calls these functions by their names, so that it needs not import them, nor torch. What they get and return
is plain data.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import cloudpickle
import torch
from IPython.core.getipython import get_ipython

from ..cell_names import METHODS, PROPERTIES
from ..comm import torchrun
from ..errors import CollectiveError, LessonError
from .compare import difference, shown
from .courses import Course, find
from .draw import Draw
from .puzzle import Cell, CellPuzzle, Collective, FunctionPuzzle, Prediction, Puzzle, Trial, UnusableError

_T = TypeVar("_T", bound=Puzzle)

_EMPTY = (lambda: None).__code__.co_code
"""The code of a function whose body is three dots."""


def attempt(name: str, course: Course, seed: int) -> dict[str, Any]:
    """Call the learner's function once on this rank; every rank must do so.

    Args:
        name: of the puzzle.
        course: where it is.
        seed: of the inputs.

    Returns:
        ``missing`` if this rank has no such function, or an empty one; ``raised``, with ``kind``, if the function did;
        else ``given``, and ``wrong`` if the result is; and ``result``, pickled, if the puzzle collects them.
    """
    puzzle = _puzzle(name, course, FunctionPuzzle)
    function = _variables().get(name)
    if not callable(function) or getattr(getattr(function, "__code__", None), "co_code", b"") == _EMPTY:
        return {"missing": True}
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    with _of_the_teacher(name):
        mine = _given(puzzle, seed, rank, size)
    try:
        result = puzzle.call(function, mine)
        unusable = ""
    except UnusableError as error:
        result, unusable = None, str(error)
    except Exception as error:  # noqa: BLE001 - it is the learner's
        return {"raised": _raised(error, function), "kind": type(error).__name__}
    with _of_the_teacher(name):
        # Drawn once more: the function may have changed what it was given.
        every = [_given(puzzle, seed, each, size) for each in range(size)]
        wrong = unusable or difference(result, puzzle.right(every, rank))
        packed = cloudpickle.dumps(result) if puzzle.collects else b""  # the notebook cannot read tensors
        return {"given": puzzle.arguments(every[rank]), "wrong": wrong, "result": packed}


def solve(name: str, course: Course, seed: int) -> None:
    """Call a puzzle's solution once on this rank, for what its collectives are; every rank must do so."""
    puzzle = _puzzle(name, course, FunctionPuzzle)
    comm = torchrun.init()
    names = {each: getattr(comm, each) for each in (*PROPERTIES, *METHODS)}
    names.update(torch=torch, dist=torch.distributed, comm=comm)
    with _of_the_teacher(name):
        exec(compile(puzzle.solution, f"<solution of {name}>", "exec"), names)  # noqa: S102 - as a cell is
        puzzle.call(names[name], _given(puzzle, seed, comm.rank, comm.world_size))


def judge(
    name: str,
    course: Course,
    trials: Sequence[tuple[int, Sequence[bytes], Sequence[Sequence[dict[str, Any]]]]],
) -> str:
    """Return what a puzzle says of how the ranks came to right results; "" if nothing. One rank is enough for it.

    Args:
        name: of the puzzle.
        course: where it is.
        trials: of each the seed, and of each rank its result and its calls.
    """
    puzzle = _puzzle(name, course, FunctionPuzzle)
    with _of_the_teacher(name):
        for seed, packed, calls in trials:
            given = [_given(puzzle, seed, rank, len(calls)) for rank in range(len(calls))]
            results = [cloudpickle.loads(each) for each in packed if each]
            made = [[Collective(**call) for call in each] for each in calls]
            complaint = puzzle.complaint(Trial(given, results, made))
            if complaint:
                return complaint
    return ""


def judge_cell(name: str, course: Course, code: str, said: str) -> tuple[str, str]:
    """Return what is wrong with the last cell, "" if nothing is; and what to say of one that is right."""
    puzzle = _puzzle(name, course, CellPuzzle)
    with _of_the_teacher(name):
        cell = Cell(code, said)
        complaint = puzzle.complaint(cell)
        return complaint, "" if complaint else puzzle.praise(cell)


def compare_prediction(name: str, course: Course, typed: Any, code: str, said: str) -> dict[str, Any]:
    """Compare a prediction with what the run has shown; one rank is enough for it, which is rank 0.

    Args:
        name: of the puzzle.
        course: where it is.
        typed: the prediction.
        code: the last cell.
        said: the error that ended it.

    Returns:
        ``missing``: what the experiment would have made; else ``right``, the ``value`` in words, and why.
    """
    puzzle = _puzzle(name, course, Prediction)
    try:
        with _of_the_teacher(name, KeyError):
            value = puzzle.shown(_variables(), Cell(code, said))
            right = puzzle.accepts(typed, value)
    except KeyError as error:
        return {"missing": str(error.args[0])}
    return {"right": right, "value": shown(value), "because": puzzle.because}


def _puzzle(name: str, course: Course, kind: type[_T]) -> _T:
    found = find(name, course)
    if not issubclass(found, kind):
        raise LessonError(f"The puzzle {name} is a {found.kind}, and is checked as one.")
    return found()


def _given(puzzle: FunctionPuzzle, seed: int, rank: int, size: int) -> tuple[Any, ...]:
    return puzzle.given(Draw(seed, rank), Draw(seed, -1), rank, size)


def _variables() -> Mapping[str, Any]:
    shell = get_ipython()
    return {} if shell is None else shell.user_ns


@contextmanager
def _of_the_teacher(name: str, but: type[Exception] = LessonError) -> Iterator[None]:
    """Say whose fault it is if a puzzle's own code raises anything but this."""
    try:
        yield
    except Exception as error:
        if isinstance(error, (but, LessonError)):
            raise
        raise LessonError(f"The puzzle {name} itself raised {type(error).__name__}: {error}") from error


def _raised(error: Exception, function: Callable[..., Any]) -> str:
    """Return what a function has raised, and in which of the learner's lines."""
    collective = isinstance(error, CollectiveError)
    said = str(error) if collective else f"{type(error).__name__}: {error}"
    if collective and re.search(r"\bline \d", said):
        return said
    file = getattr(getattr(function, "__code__", None), "co_filename", None)
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    where = f"\n  in line {own[-1].lineno} of its cell: {own[-1].line}" if own else ""
    return f"{said}{where}"
