"""Functions of the ranks' side that the notebook calls by their names: it imports neither them, nor torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from . import errors


class ByName:
    """A function of nbcomm's; pickled, and so on a rank, it is `answered` of it.

    Args:
        path: its module and its name: "nbcomm.measures.times.of_op".
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.__name__ = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return _found, (self._path,)

    def __call__(self, *_args: Any) -> Any:
        """Refuse: it is called on ranks."""
        raise NotImplementedError(f"{self._path} is called on ranks only.")


def _found(path: str) -> Callable[..., Any]:
    module, _, name = path.rpartition(".")
    return partial(answered, getattr(importlib.import_module(module), name))


def answered(function: Callable[..., Any], *args: Any) -> tuple[Any, tuple[str, str] | None]:
    """Return what a function returns, and None; or the kind of the error by which it refuses, and its sentence."""
    try:
        return function(*args), None
    except errors.SteeringError as error:
        return None, (type(error).__name__, str(error))


def values(answers: Sequence[tuple[Any, tuple[str, str] | None]]) -> list[Any]:
    """Return what each rank has returned; raise what the first one that refuses has raised.

    Raises:
        SteeringError: as on that rank.
    """
    for _, refused in answers:
        if refused is not None:
            raise getattr(errors, refused[0])(refused[1])
    return [value for value, _ in answers]
