"""What cannot travel between the notebook and the ranks: found in a value that holds it, and told with a remedy."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

_DEEPEST, _MOST = 8, 2000
"""How deep, and at how many objects, one looks."""

_ELSE = "Make it where it is needed, or send what it is made of."

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


def remedy(value: Any, path: str = "") -> str | None:
    """Return what to do about an object that cannot travel as it is; None if it may be able to."""
    for kind in type(value).__mro__:
        if kind.__name__ in _REMEDIES and kind.__module__.partition(".")[0] in ("torch", "nbcomm", "builtins"):
            return _REMEDIES[kind.__name__].format(path=path)
    return None


def told(value: Any, error: Exception, travels: Callable[[Any], bool]) -> str:
    """Return the sentences about a value that cannot travel.

    Args:
        value: it. The keys of a dict are taken for variables; a function may come with its arguments, as for a call.
        error: why it cannot.
        travels: tries one object.
    """
    steps: Iterator[_Step] = iter(_parts(value))
    last = _Step("", value)
    tried = 0
    for _ in range(_DEEPEST):
        for step in steps:
            tried += 1
            if tried > _MOST or not travels(step.value):
                break
        else:
            break
        if tried > _MOST:
            break
        last = step if step.user else step._replace(user=last.user)
        if remedy(last.value) is not None:
            break
        steps = _inside(last)
    user = f"; {last.user} uses it" if last.user else ""
    who = f"{last.path} ({_kind(last.value)}{user})" if last.path else f"A value of type {_kind(last.value)}"
    why = f"{type(error).__name__}: {error}".rstrip(".")
    what = remedy(last.value, last.path or "it") or _ELSE
    return f"{who} cannot travel between the notebook and the ranks: {why}. {what}"


class _Step(NamedTuple):
    """An object, where it is, and which function uses it."""

    path: str
    value: Any
    user: str = ""


def _kind(value: Any) -> str:
    names = [kind.__name__ for kind in type(value).__mro__]
    return "process group" if "ProcessGroup" in names else names[0]


def _parts(value: Any) -> Iterator[_Step]:
    """Yield what a request consists of."""
    match value:
        case dict():
            yield from (_Step(str(name), one) for name, one in value.items())
        case (function, tuple() as args, dict() as kwargs) if callable(function):
            yield _Step("the function", function)
            yield from (_Step(f"argument {place}", one) for place, one in enumerate(args, 1))
            yield from (_Step(f"argument {name}", one) for name, one in kwargs.items())
        case _:
            yield from _inside(_Step("", value))


def _inside(step: _Step) -> Iterator[_Step]:
    """Yield what an object holds."""
    path, value, _ = step
    if isinstance(value, dict):
        yield from (_Step(f"{path}[{_short(key)}]", one) for key, one in list(value.items()))
    elif isinstance(value, list | tuple):
        yield from (_Step(f"{path}[{place}]", one) for place, one in enumerate(value))
    elif isinstance(value, types.FunctionType):
        yield from (_Step(name, one, value.__name__) for name, one in inspect.getclosurevars(value).nonlocals.items())
        yield from (_Step(name, one, value.__name__) for name, one in inspect.getclosurevars(value).globals.items())
    elif isinstance(value, types.MethodType):
        yield _Step(path, value.__self__)
    else:
        yield from (_Step(f"{path}.{name}" if path else name, one) for name, one in list(_attributes(value)))


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    own = getattr(value, "__dict__", None)
    return iter(own.items()) if isinstance(own, dict) else iter(())


def _short(key: Any) -> str:
    text = repr(key)
    return text if len(text) <= 40 else f"{text[:39]}…"
