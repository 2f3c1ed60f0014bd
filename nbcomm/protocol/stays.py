"""What cannot travel between the notebook and the ranks: found in a value that holds it, and told with a remedy."""

from __future__ import annotations

import functools
import sys
import sysconfig
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

_DEEPEST, _MOST = 12, 2000
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


def told(value: Any, error: Exception, travels: Callable[[Any], bool], *, to_ranks: bool = False) -> str:
    """Return the sentences about a value that cannot travel.

    Args:
        value: it. The keys of a dict are taken for variables; a function may come with its arguments, as for a call.
        error: why it cannot.
        travels: tries one object.
        to_ranks: it is in the notebook, and was to go to the ranks.
    """
    way = _way(value, error, travels)
    why = f"{type(error).__name__}: {error}".rstrip(".")
    if not way:
        who = " and ".join(map(str, value)) if isinstance(value, dict) else f"A value of type {_kind(value)}"
        return f"{who} cannot travel between the notebook and the ranks: {why}. {_ELSE}"
    root, last = way[0], way[-1]
    who = f"{root.path} ({_kind(root.value)})" if root.path != _CALLED else _CALLED
    if last.path != root.path:
        user = next((step.user for step in reversed(way) if step.user), "")
        by = "" if user in ("", root.path, _name_of(root.value)) else f", as {user} does"
        who += f" {'uses' if user else 'holds'} {last.path} ({_kind(last.value)}){by}, and"
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
    """An object, where it is, and which function uses it."""

    path: str
    value: Any
    user: str = ""
    shown: bool = True
    """Whether a user knows it: what a library's object holds means nothing to them."""


def _way(value: Any, error: Exception, travels: Callable[[Any], bool]) -> list[_Step]:
    """Return the objects from a variable to what cannot travel in it, each in the one before, as far as users know."""
    too_deep = isinstance(error, RecursionError) or isinstance(error.__cause__, RecursionError)
    way: list[_Step] = []
    seen: set[int] = set()
    tried = 0
    left = [_parts(value)]
    while left and tried < _MOST and len(way) < _DEEPEST:
        step = next(left[-1], None)
        if step is None:
            if not way or not _leads_on(way[-1], seen):
                break
            left.pop()  # it only leads back: the reason is elsewhere
            way.pop()
            continue
        tried += 1
        if id(step.value) in seen or travels(step.value):
            continue
        seen.add(id(step.value))
        way.append(step)
        if too_deep or remedy(step.value) is not None:
            break
        left.append(iter(list(_inside(step))))
    return _known(way)


def _leads_on(step: _Step, seen: set[int]) -> bool:
    """Return whether an object holds another one that was met before."""
    return any(id(inner.value) in seen for inner in _inside(step))


def _known(way: list[_Step]) -> list[_Step]:
    """Return the way without its end in a library's object."""
    last = max((place for place, step in enumerate(way) if step.shown), default=-1)
    return way[: last + 1]


def _kind(value: Any) -> str:
    names = [kind.__name__ for kind in type(value).__mro__]
    if isinstance(value, type):
        return "class"
    return "process group" if "ProcessGroup" in names else "open file" if "_IOBase" in names else names[0]


def _name_of(value: Any) -> str:
    return str(getattr(value, "__name__", ""))


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
    path, value, _, shown = step
    if isinstance(value, dict):
        yield from (_Step(f"{path}[{_short(key)}]", one, "", shown) for key, one in list(value.items()))
        if hasattr(value, "default_factory"):
            yield _Step(f"{path}.default_factory", value.default_factory)
    elif isinstance(value, list | tuple | deque):
        yield from (_Step(f"{path}[{place}]", one, "", shown) for place, one in enumerate(value))
    elif isinstance(value, types.FunctionType):
        yield from _used_by(value)
    elif isinstance(value, types.MethodType):
        yield _Step(path, value.__self__, "", shown)
        yield _Step(path, value.__func__)
    elif isinstance(value, functools.partial):
        yield from (_Step(f"{path}.{name}", getattr(value, name)) for name in ("func", "args", "keywords"))
    elif isinstance(value, property | classmethod | staticmethod):
        made = (getattr(value, name, None) for name in ("fget", "fset", "fdel", "__func__"))
        yield from (_Step(path, one) for one in made if one is not None)
    elif isinstance(value, type):
        own = _is_users(value)
        yield from (_Step(f"{path}.{name}", one, "", own) for name, one in vars(value).items() if name[:2] != "__")
    else:
        own = _is_users(type(value)) or isinstance(value, types.ModuleType)
        yield from (_Step(f"{path}.{name}" if path else name, one, "", own) for name, one in list(_attributes(value)))
        if own:
            yield _Step(f"{path}.__class__" if path else "", type(value))


def _used_by(function: types.FunctionType) -> Iterator[_Step]:
    """Yield what a function uses: what it closes over, its defaults, and globals, also those of functions in it."""
    user = function.__name__
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    for name, cell in cells:
        with_value = cell.cell_contents if _is_full(cell) else None
        yield _Step(name, with_value, user)
    for place, default in enumerate(function.__defaults__ or ()):
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        yield _Step(names[place - len(function.__defaults__ or ())], default, user)
    yield from (_Step(name, default, user) for name, default in (function.__kwdefaults__ or {}).items())
    for name in _global_names(function.__code__):
        if name in function.__globals__:
            yield _Step(name, function.__globals__[name], user)


def _is_full(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _global_names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _global_names(one)


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
    root = kind.__module__.partition(".")[0]
    if root == "__main__":  # typed in a notebook, whatever program runs it; its file may be an installed one's
        return True
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    if root in ("nbcomm", *sys.builtin_module_names) or root in sys.stdlib_module_names:
        return False
    return file is None or not str(file).startswith(_LIBRARIES)


def _short(key: Any) -> str:
    text = repr(key)
    return text if len(text) <= 40 else f"{text[:39]}…"
