from __future__ import annotations

import inspect
import re
import traceback
from pathlib import Path

import pytest

import nbcomm
from nbcomm import errors
from nbcomm.errors import StartError


def _drawn() -> dict[str, str]:
    """Each class of the tree in the module's docstring, and the one that it hangs below."""
    assert errors.__doc__ is not None
    parents: dict[str, str] = {}
    path: list[str] = []
    for line in errors.__doc__.splitlines():
        branch = re.match(r" {4}((?:[│ ] {3})*)(?:[├└]── )?(\w+Error)\b", line)
        if branch is None:
            continue
        depth = len(branch[1]) // 4 + ("── " in line)
        path[depth:] = [branch[2]]
        if depth:
            parents[branch[2]] = path[depth - 1]
    return parents


def _classes() -> dict[str, type[Exception]]:
    """The public classes of nbcomm's errors; `Interrupted` is a KeyboardInterrupt, and caught as one."""
    return {
        name: member
        for name, member in inspect.getmembers(errors, inspect.isclass)
        if issubclass(member, errors.NbcommError) and not name.startswith("_")
    }


def test_the_tree_in_the_docstring_is_the_tree_of_classes() -> None:
    root = errors.NbcommError
    real = {
        name: next(base.__name__ for base in cls.__mro__[1:] if base.__name__ in _classes())
        for name, cls in _classes().items()
        if cls is not root
    }
    assert _drawn() == real


def test_what_the_tree_says_about_value_errors_is_true() -> None:
    assert errors.__doc__ is not None
    said = {match[1] for match in re.finditer(r"(\w+Error) .*\(also ValueError\)", errors.__doc__)}
    assert said == {name for name, cls in _classes().items() if issubclass(cls, ValueError)}


def test_all_is_every_class_in_alphabetical_order() -> None:
    assert errors.__all__ == sorted(_classes())


def test_a_steering_error_shows_its_sentence_and_no_frames() -> None:
    with pytest.raises(errors.NbcommError) as raised:
        raise errors.StateError("No world is running; type %distributed start.")
    assert raised.value._render_traceback_() == ["StateError: No world is running; type %distributed start."]


def test_a_cell_error_carries_its_ranks_in_order() -> None:
    error = errors.CellError("Ranks 1 and 3 failed.", {3: "three", 1: "one"})
    assert error.ranks == [1, 3]
    assert error.tracebacks == {1: "one", 3: "three"}
    assert error._render_traceback_() == ["CellError: Ranks 1 and 3 failed."]


def test_a_cell_error_shows_what_was_rendered_and_then_its_sentence() -> None:
    error = errors.CellError("Rank 1 failed.", {1: "…"}, "first line\nsecond line")
    assert error._render_traceback_() == ["first line", "second line", "CellError: Rank 1 failed."]


def test_a_start_that_fails_in_a_script_shows_none_of_our_frames_but_the_call() -> None:
    with pytest.raises(StartError) as failed:
        nbcomm.start(0)
    frames = [entry.filename for entry in traceback.extract_tb(failed.value.__traceback__)]
    assert [Path(file) for file in frames] == [Path(__file__), Path(nbcomm.__file__)]
    assert failed.value.__suppress_context__
