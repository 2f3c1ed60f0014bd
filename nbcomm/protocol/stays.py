"""What cannot travel between the notebook and the ranks: the way to it in a value that holds it, and a remedy."""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
import sysconfig
import types
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

_DEEPEST, _MOST = 12, 20_000
"""How deep, and at how many objects, one looks."""

_ELSE = "Make it where it is needed, or send what it is made of."
_TO_RANKS = "Make it in a %%distributed cell, or push what it is made of."
_DEFINE = "Define {path} in a %%distributed cell, with everything that it uses."

_REMEDIES = {
    "DistributedDataParallel": "It belongs to its ranks: send the module in it, {path}.module.",
    "FSDPModule": "It belongs to its ranks: send its state, which {path}.state_dict() returns there.",
    "ProcessGroup": "It belongs to its ranks: make it there, with new_group.",
    "DeviceMesh": "It belongs to its ranks: send their numbers, {path}.mesh.",
    "Communicator": "It belongs to its rank.",
    "Handle": "It belongs to its rank: wait for it there, and send the result.",
    "Work": "It belongs to its rank: wait for it there, and send the result.",
    "generator": "Send what it yields, as a list.",
}
"""By the name of a class; {path} is where the object is."""

_CALLED = "the function"
"""Where a function is that is to be called."""

_PAGES = "It belongs to the page: make one in a %%distributed cell, or push its value, {path}.value."
_FILES = "Open it where it is needed, or send what is in it."

_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def remedy(value: Any, path: str = "") -> str | None:
    """Return what to do about an object that cannot travel as it is; None if it may be able to."""
    for kind in type(value).__mro__:
        if kind.__name__ in _REMEDIES and kind.__module__.partition(".")[0] in ("torch", "nbcomm", "builtins"):
            return _REMEDIES[kind.__name__].format(path=path)
    return None


def told(value: Any, error: Exception, met: Any, *, to_ranks: bool = False) -> str:
    """Return the sentences about a value that cannot travel.

    Args:
        value: it. The keys of a dict are taken for variables; a function may come with its arguments, as for a call.
        error: why it cannot.
        met: the object at which pickle has ended.
        to_ranks: it is in the notebook, and was to go to the ranks.
    """
    way = _way(value, met)
    why = f"{type(error).__name__}: {error}".rstrip(".")
    if not way:
        who = " and ".join(map(str, value)) if isinstance(value, dict) else f"A value of type {_kind(value)}"
        return f"{who} cannot travel between the notebook and the ranks: {why}. {remedy(met) or _ELSE}"
    root, last = way[0], way[-1]
    who = f"{root.path} ({_kind(root.value)})" if root.path != _CALLED else _CALLED
    if last.path != root.path:
        does = "uses" if any(isinstance(step.value, types.FunctionType) for step in way) else "holds"
        who += f" {does} {last.path} ({_kind(last.value)}), and"
    return f"{who} cannot travel between the notebook and the ranks: {why}. {_remedy(root, last, to_ranks=to_ranks)}"


def _remedy(root: _Step, last: _Step, *, to_ranks: bool) -> str:
    known = remedy(last.value, last.path)
    if known is not None:
        return known
    kinds = [kind.__name__ for kind in type(last.value).__mro__]
    if "_IOBase" in kinds:
        return _FILES
    if not to_ranks:
        return _ELSE
    if "Widget" in kinds or "DOMWidget" in kinds:
        return _PAGES.format(path=last.path)
    if isinstance(root.value, types.FunctionType | types.MethodType | type | functools.partial):
        return _DEFINE.format(path=root.path)
    return _TO_RANKS


class _Step(NamedTuple):
    """An object, and where it is."""

    path: str
    value: Any
    shown: bool = True
    """Whether a user knows it: what a library's object holds means nothing to them."""


def _way(value: Any, met: Any) -> list[_Step]:
    """Return the shortest way from a variable to an object in it, as far as users know the objects on it."""
    ways, seen = deque[tuple[_Step, ...]]((step,) for step in _parts(value)), set[int]()
    while ways and len(seen) < _MOST:
        way = ways.popleft()
        if way[-1].value is met:
            return list(itertools.takewhile(lambda step: step.shown, way))
        if len(way) < _DEEPEST and id(way[-1].value) not in seen:
            seen.add(id(way[-1].value))
            ways.extend((*way, inner) for inner in _inside(way[-1]))
    return []


def _kind(value: Any) -> str:
    names = [kind.__name__ for kind in type(value).__mro__]
    if isinstance(value, type):
        return "class"
    return "process group" if "ProcessGroup" in names else "open file" if "_IOBase" in names else names[0]


def _parts(value: Any) -> Iterator[_Step]:
    """Yield what a request consists of."""
    match value:
        case dict():
            yield from (_Step(str(name), one) for name, one in value.items())
        case (function, tuple() as args, dict() as kwargs) if callable(function):
            yield _Step(_CALLED, function)
            yield from (_Step(f"argument {place}", one) for place, one in enumerate(args, 1))
            yield from (_Step(f"argument {name}", one) for name, one in kwargs.items())
        case _:
            yield from _inside(_Step("", value))


def _inside(step: _Step) -> Iterator[_Step]:
    """Yield what an object holds."""
    path, value, shown = step
    match value:
        case dict():
            yield from (_Step(f"{path}[{_short(key)}]", one, shown) for key, one in list(value.items()))
        case list() | tuple() | deque():
            yield from (_Step(f"{path}[{place}]", one, shown) for place, one in enumerate(value))
        case types.FunctionType():
            yield from (_Step(name, one) for name, one in _used_by(value))
        case types.MethodType():
            yield from (_Step(path, value.__self__, shown), _Step(path, value.__func__))
        case functools.partial():
            yield from (_Step(f"{path}.{name}", getattr(value, name)) for name in ("func", "args", "keywords"))
        case type() | types.ModuleType():  # others travel by their names
            if isinstance(value, type) and value.__module__ == "__main__":
                yield from (_Step(f"{path}.{name}", one) for name, one in vars(value).items() if name[:2] != "__")
            return
    own = _is_users(type(value))
    yield from (_Step(f"{path}.{name}".lstrip("."), one, own) for name, one in list(_attributes(value)))
    yield _Step(path, type(value), own)


def _used_by(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what a function uses, by name: its defaults, what it closes over, and globals."""
    with suppress(ValueError, TypeError):  # what it closes over is not set yet
        yield from ((name, one.default) for name, one in inspect.signature(function).parameters.items())
        names = inspect.getclosurevars(function)
        yield from names.nonlocals.items()
        yield from names.globals.items() if function.__module__ == "__main__" else ()


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    own = getattr(value, "__dict__", None)
    yield from own.items() if isinstance(own, dict) else ()
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                yield name, getattr(value, name)


def _is_users(kind: type) -> bool:
    """Return whether a class is of the user's own, and not of an installed library."""
    if (
        kind.__module__ == "__main__"
    ):  # typed in a notebook, whatever program runs it; its file may be an installed one's
        return True
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return file is not None and not file.startswith(_LIBRARIES) and kind.__module__.partition(".")[0] != "nbcomm"


def _short(key: Any) -> str:
    text = repr(key)
    return text if len(text) <= 40 else f"{text[:39]}…"
