"""Where puzzles are: in nbcomm's own lessons, or in a teacher's file."""

from __future__ import annotations

import difflib
import importlib
import sys
import types
import zlib
from typing import Any

from ..errors import LessonError
from .puzzle import FunctionPuzzle, Prediction, Puzzle

Course = tuple[str, str] | None
"""The file with a teacher's own puzzles, and its text; None for those of nbcomm."""

_LIBRARY = "nbcomm.lessons.library"

_LOADED: dict[str, tuple[str, types.ModuleType]] = {}
"""The text and the module of each file of a teacher."""


def find(name: str, course: Course = None) -> type[Puzzle]:
    """Return a puzzle.

    Raises:
        LessonError: there is none of this name.
    """
    known = {puzzle.name: puzzle for _, puzzle in puzzles(course)}
    if name not in known:
        where = f"{course[0]} has" if course is not None else "There are"
        near = "".join(f" Did you mean {each}?" for each in difflib.get_close_matches(name, known, 1))
        raise LessonError(f"There is no puzzle {name!r}.{near} {where} {', '.join(known) or 'none'}.")
    return known[name]


def describe(course: Course = None, name: str | None = None) -> list[dict[str, Any]]:
    """Return what the notebook needs to know of one puzzle, or of all, in their order.

    Raises:
        LessonError: there is none of this name.
    """
    chosen = puzzles(course)
    if name is not None:
        found = find(name, course)
        chosen = [(lesson, puzzle) for lesson, puzzle in chosen if puzzle is found]
    return [
        {
            "name": puzzle.name,
            "lesson": lesson,
            "kind": puzzle.kind,
            "asks": puzzle.asks if issubclass(puzzle, FunctionPuzzle) else "",
            "law": puzzle.law(),
            "hints": list(puzzle.hints),
            "trials": puzzle.trials if issubclass(puzzle, FunctionPuzzle) else 0,
            "solved": issubclass(puzzle, FunctionPuzzle) and bool(puzzle.solution),
            "number": issubclass(puzzle, Prediction) and puzzle.number,
        }
        for lesson, puzzle in chosen
    ]


def puzzles(course: Course = None) -> list[tuple[str, type[Puzzle]]]:
    """Return all puzzles, each with its lesson's title, in order."""
    return [(_title(module), puzzle) for module in _modules(course) for puzzle in _puzzles_in(module)]


def _title(module: types.ModuleType) -> str:
    """Return the first sentence of a module's docstring."""
    return (module.__doc__ or "").strip().partition("\n")[0].partition(". ")[0].rstrip(".")


def _modules(course: Course) -> list[types.ModuleType]:
    if course is None:
        library = importlib.import_module(_LIBRARY)
        return [importlib.import_module(f"{_LIBRARY}.{name}") for name in library.LESSONS]
    file, text = course
    if file not in _LOADED or _LOADED[file][0] != text:
        _LOADED[file] = text, _load(file, text)
    return [_LOADED[file][1]]


def _load(file: str, text: str) -> types.ModuleType:
    # The same on each rank, whatever that has loaded before: classes are pickled by it.
    module = types.ModuleType(f"nbcomm_course_{zlib.crc32((file + text).encode()):08x}")
    module.__file__ = file
    sys.modules[module.__name__] = module  # for pickle, and dataclasses
    try:
        exec(compile(text, file, "exec"), module.__dict__)  # noqa: S102 - the teacher's own, as any cell is
    except Exception as error:
        raise LessonError(f"{file} cannot be read as puzzles: {type(error).__name__}: {error}") from error
    return module


def _puzzles_in(module: types.ModuleType) -> list[type[Puzzle]]:
    """Return the puzzles that a module defines."""
    return [
        each
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, Puzzle) and each.__module__ == module.__name__ and each.name
    ]
