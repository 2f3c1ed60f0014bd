"""What two processes mean by one name: functions of nbcomm's, and classes that are typed in cells.

The notebook calls functions of the ranks' side by their names: it imports neither them, nor torch. And each rank that
runs the cell of a class has a class of its own, as has a notebook that runs it: an instance that arrives is one of the
receiver's.
"""

from __future__ import annotations

import hashlib
import importlib
import re
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import cloudpickle

from . import errors

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")

_arrived: weakref.WeakSet[type] = weakref.WeakSet()
"""Classes of other processes that this one has no class of its own for."""


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


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """Takes functions and classes that were typed in cells by value, but an instance as one of the receiver's class.

    Where the receiver has no class of that name, all senders' classes that were typed in the same words are one there.
    A class that is sent itself, or that a function uses, arrives as it is here.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._of_instances: set[type] = set()
        self._sent: set[int] = set()

    def dump(self, obj: Any) -> None:
        """Pickle a value; the values of a dict count as sent themselves."""
        self._sent = {id(one) for one in obj.values()} if isinstance(obj, dict) else set()
        super().dump(obj)

    def reducer_override(self, obj: Any) -> Any:
        """Reduce a class so that `_class_of` finds the receiver's, or makes it."""
        if type(obj).__module__ == "__main__":
            self._of_instances.update(type(obj).__mro__)
        reduced = super().reducer_override(obj)
        if not isinstance(obj, type) or type(reduced) is not tuple or not _has_name(obj):
            return reduced
        make, args, *state, fill = reduced
        name = obj.__qualname__ if obj in self._of_instances and id(obj) not in self._sent else ""
        args = (*args[:-2], _definition(obj, args), args[-1])  # in place of a number that cloudpickle has drawn for it
        return _class_of, (name, make, args), (fill, state[0]), None, None, _fill


def _own(name: str) -> type | None:
    """Return the class that was typed under a name in this process, if that still has it."""
    found: Any = sys.modules["__main__"]
    for part in name.split("."):
        found = getattr(found, part, None)
    typed = isinstance(found, type) and (found.__module__, found.__qualname__) == ("__main__", name)
    return found if typed else None


def _has_name(kind: type) -> bool:
    """Return whether a class is what its name stands for: here, or where it comes from."""
    own = _own(kind.__qualname__)
    return own is kind or (own is None and kind in _arrived)


def _class_of(name: str, make: Callable[..., type], args: tuple[Any, ...]) -> type:
    return _own(name) or make(*args)


def _fill(kind: type, how: tuple[Callable[[type, Any], Any], Any]) -> None:
    if kind is not _own(kind.__qualname__) and kind not in _arrived:
        fill, state = how
        fill(kind, state)
        _arrived.add(kind)


def _definition(kind: type, args: tuple[Any, ...]) -> str:
    """Return a hash that is equal where a class is typed in the same words; else cloudpickle's number."""
    with suppress(Exception):  # what a user's own object says of itself
        members = {**vars(kind), "__static_attributes__": None}  # Python lists these in no order
        said = [(name, member, _code(member)) for name, member in sorted(members.items())]
        text = _ADDRESS.sub("", repr((args[:-2], said)))
        return hashlib.blake2b(text.encode(errors="replace"), digest_size=16).hexdigest()
    return str(args[-2])


def _code(member: Any) -> Any:
    code = getattr(getattr(member, "fget", getattr(member, "__func__", member)), "__code__", None)
    return code and (code.co_code, code.co_names, code.co_varnames, code.co_consts)
