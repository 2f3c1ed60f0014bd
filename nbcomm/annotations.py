"""Signatures as help shows them: an annotation that is a text has no quotes there, as it was written."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

Public = TypeVar("Public")


class _Written(str):
    """The text of an annotation."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def as_written(shown: Public) -> Public:
    """Let help show the annotations of a function, or of a class's public methods, without quotes.

    They stay texts, so that none of their names is imported.

    >>> @as_written
    ... def f(data: Any) -> int: ...
    >>> inspect.signature(f)
    <Signature (data: Any) -> int>
    """
    members = [shown] if inspect.isfunction(shown) else _methods(shown)
    for member in members:
        function: Any = inspect.unwrap(getattr(member, "__func__", member))
        annotations = getattr(function, "__annotations__", {})
        annotations.update({name: _Written(text) for name, text in annotations.items() if isinstance(text, str)})
    return shown


def _methods(shown: Any) -> list[Any]:
    return [
        member
        for each in inspect.getmro(shown)
        if each.__module__.startswith("nbcomm.")
        for name, member in vars(each).items()
        if callable(getattr(member, "__func__", member)) and (name[0] != "_" or name in ("__init__", "__call__"))
    ]
