"""What a cell itself calls, and in which line: that is what a person knows, not what torch is called with for it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import CodeType, FrameType
from typing import Any

import torch

from .board import place
from .comm.objects import HEAD_BYTES
from .journaled import journaled

TYPED = ("<stdin>", "<string>")
"""Files of code that has no place in a cell: typed at a debugger's prompt, or made by `eval`."""

_CALL: CodeType = journaled("", lambda: None).__code__
"""The code of every Communicator's method that a cell calls."""

_REDUCED = ("all_reduce", "reduce")
"""Methods that hand a tensor to torch as it is: torch's own words tell more."""

_HEAD = f"uint8 ({HEAD_BYTES},), "
"""What comes first for all that is not reduced: see `comm.wire`."""

_OBJECTS = (
    *("all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list"),
    *("recv_object_list", "send_object_list"),
)
"""Torch's own for objects: what they call to move them is known to nobody."""

_CACHED = 4096
_cache: dict[tuple[Any, ...], tuple[bytes, CodeType, CodeType]] = {}
_NOWHERE = place("")


def here(scope: dict[str, Any] | None) -> bytes:
    """What the cell has called that has led to the caller of the caller, ready for the board.

    Every collective asks, so what is asked for again comes from a cache: to find a line alone takes microseconds.

    Args:
        scope: the namespace of the cells.
    """
    if scope is None:
        return _NOWHERE
    called = within = sys._getframe(2)  # noqa: SLF001 - the only way to see who called, at no cost
    frame = called.f_back
    while frame is not None and frame.f_globals is not scope:
        within, called, frame = called, frame, frame.f_back
    if frame is None:
        return _NOWHERE
    code, through = frame.f_code, within.f_code
    kind = _kind(called) if called.f_code is _CALL else None
    key = id(code), frame.f_lasti, id(through), kind  # a code's own hash takes as long as all else here
    try:
        return _cache[key][0]
    except KeyError:
        pass
    name = through.co_name if through.co_name in _OBJECTS else called.f_code.co_name  # torch may wrap it, or not
    what = _what(*kind) if kind is not None else name if name in _OBJECTS else ""
    where = place(f"{what}|{_line(frame, scope) or ''}")
    if code.co_filename not in TYPED:
        if len(_cache) >= _CACHED:
            _cache.clear()
        _cache[key] = where, code, through  # with the codes, or others might get their ids
    return where


def _kind(frame: FrameType) -> tuple[Any, ...] | None:
    """A Communicator's method, and what it was called with."""
    found = frame.f_locals
    name, args, kwargs = found["name"], found["args"], found["kwargs"]
    if name == "barrier":
        return (name,)
    data = args[0] if args else kwargs.get("data", kwargs.get("items", kwargs))
    if data is kwargs or name == "recv":
        return (name,)
    if isinstance(data, torch.Tensor):
        return None if name in _REDUCED else (name, data.dtype, data.shape)
    return name, type(data).__name__


def _what(name: str, of: Any = "", shape: torch.Size | None = None) -> str:
    if shape is not None:
        return f"{name} of {str(of).removeprefix('torch.')} {tuple(shape)}"
    if not of:
        return name
    if of == "NoneType":
        return f"{name} of None"
    return f"{name} of a{'n' if of[0].lower() in 'aeiou' else ''} {of}"


def _line(frame: FrameType | None, scope: dict[str, Any]) -> int | None:
    while frame is not None and (frame.f_globals is not scope or frame.f_code.co_filename in TYPED):
        frame = frame.f_back
    return frame.f_lineno if frame is not None else None


def in_words(said: Mapping[int, tuple[str, str]]) -> dict[int, str]:
    """What each rank called, as its cell did: "all_gather of a dict, line 4".

    Args:
        said: of each rank, what torch was called with, and what the cell called (see `here`); "" for what is unknown.

    >>> in_words({0: ("all_gather_into_tensor(uint8 (512,))", "all_gather of a dict|4"), 1: ("barrier()", "|5")})
    {0: 'all_gather of a dict, line 4', 1: 'barrier(), line 5'}
    """
    inside: dict[str, set[str]] = {}
    for words, where in said.values():
        inside.setdefault(where.partition("|")[0], set()).add(words)
    told = {}
    for rank, (words, where) in said.items():
        what, _, line = where.partition("|")
        if what and words and len(inside[what]) > 1:  # else the difference would not show
            what = f"{what} ({_inside(what, words)})"
        told[rank] = (what or words or "something else") + (f", line {line}" if line else "")
    return told


def _inside(what: str, words: str) -> str:
    """What torch was called with for a call of the cell's: all of it, or only its arguments if it has the same name."""
    name, _, arguments = words.removesuffix(")").partition("(")
    return arguments.removeprefix(_HEAD) if name == what.partition(" of ")[0] else words


def name_of(words: str, where: str) -> str:
    """The name of what a rank called."""
    return where.partition("|")[0].partition(" of ")[0] or words.partition("(")[0].partition(" of ")[0]
