"""What a cell itself calls, and in which line: that is what a person knows, not what torch is called with for it."""

from __future__ import annotations

import linecache
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch

from ...cell_names import METHODS
from ...comm.collective import collective
from ...comm.point_to_point import PointToPoint
from ...comm.transport.packets import HEAD_BYTES
from ...short_repr import shortened
from .fingerprints import place

TYPED = ("<stdin>", "<string>")
"""Files of code that has no place in a cell: typed at a debugger's prompt, or made by `eval`."""

_CALL: CodeType = collective(lambda: None).__code__
"""The code of every Communicator's method that a cell calls."""

DEBUGGED = " in the debugger"

_ISEND = PointToPoint.isend.__code__

_REDUCED = ("all_reduce", "reduce")
"""Methods that hand a tensor to torch as it is: torch's own words tell more."""

_HEAD = f"uint8 ({HEAD_BYTES},)"
"""What comes first for all that is not reduced: see `comm.transport.exchange`."""

_OBJECTS = (
    *("all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list"),
    *("recv_object_list", "send_object_list"),
)
"""Torch's own for objects: what they call to move them is known to nobody."""

_HOW = re.compile(r"^\w+ \([\d, ]*\)(, )?")
"""A tensor in torch's words, and what stands before how it is moved."""

_OURS = "nbcomm.comm.", "nbcomm.fabric."
_TURNS = {"_first": "rank_first", "call": "one_rank_only"}
"""What carries out a method that has another name."""

_LINE = 300
"""Characters of a line that are told with each call in it: a cell may hold all of its data in one line."""

_Cache = dict[tuple[Any, ...], tuple["Said", CodeType, CodeType, CodeType]]

_CACHED = 4096
_cache: _Cache = {}


class Said(NamedTuple):
    """What a cell called.

    Attributes:
        block: all of it, ready for the board.
        what: "all_gather of a dict", "all_gather_object"; empty where torch's own words are the cell's, too.
        place: file and line of the cell; None where that is not known.
    """

    block: bytes
    what: str = ""
    place: tuple[str, int] | None = None


_NOTHING = Said(place(""))
_carried: dict[int, Said] = {}


def here(scope: dict[str, Any] | None) -> Said:
    """What the cell has called that has led to the caller of the caller.

    Every collective asks, so what a cell asks for again comes from a cache: to find a line alone takes microseconds.

    Args:
        scope: the namespace of the cells.
    """
    return _found(sys._getframe(2), scope, _cache)  # noqa: SLF001 - the only way to see who called, at no cost


def of_frame(frame: FrameType | None, scope: dict[str, Any] | None) -> Said:
    """What the cell has called that a thread is in."""
    return _found(frame, scope, {}) if frame is not None else _NOTHING


def forget() -> None:
    """A cell has ended: its code, which may hold much data, is its own again."""
    _cache.clear()


@contextmanager
def carrying(said: Said) -> Iterator[None]:
    """While the calling thread carries out what a cell has begun."""
    ident = threading.get_ident()
    before, _carried[ident] = _carried.get(ident, _NOTHING), said
    try:
        yield
    finally:
        _carried[ident] = before
        if before is _NOTHING:
            del _carried[ident]


def carried(ident: int | None = None) -> Said:
    """What a cell has begun that a thread carries out; None for the calling one."""
    return _carried.get(threading.get_ident() if ident is None else ident, _NOTHING)


def _found(start: FrameType, scope: dict[str, Any] | None, cache: _Cache) -> Said:
    if scope is None:
        return _NOTHING
    called = within = start
    method, frame = None, called if called.f_globals is scope else called.f_back
    while frame is not None and frame.f_globals is not scope:
        within, called = called, frame
        if called.f_code is _CALL:
            method = called
        frame = frame.f_back
    if frame is None:
        return carried()
    code, through, by = frame.f_code, within.f_code, called.f_code
    kind = _kind(method) if method is not None else _kind_of_isend(called) if by is _ISEND else None
    key = id(code), frame.f_lasti, id(through), id(by), kind  # a code's own hash takes as long as all else here
    try:
        return cache[key][0]
    except KeyError:
        pass
    what = _named(called, within, method, kind)
    line, _ = _line(frame, scope)
    said = Said(place(f"{what}|{line[1] if line else ''}"), what, line)
    if code.co_filename not in TYPED:
        if len(cache) >= _CACHED:
            cache.clear()
        cache[key] = said, code, through, by  # with the codes, or others might get their ids
    return said


def _named(called: FrameType, within: FrameType, method: FrameType | None, kind: tuple[Any, ...] | None) -> str:
    """What the cell called, by the outermost name that a person knows."""
    said = _what(*kind) if kind is not None else ""
    if called is method or called.f_code is _ISEND:
        return said
    for frame in (called, within):
        name = frame.f_code.co_name
        if name in _OBJECTS:  # torch may wrap it, or not
            return name
        if frame.f_code is not _CALL and frame.f_globals.get("__name__", "").startswith(_OURS):
            name = _TURNS.get(name, name)
            if name in METHODS:  # of a reduced tensor torch's words tell more
                return "" if method is not None and kind is None and method.f_locals["name"] == name else name
    return said


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


def _kind_of_isend(frame: FrameType) -> tuple[Any, ...]:
    data = frame.f_locals["data"]
    return ("isend", data.dtype, data.shape) if isinstance(data, torch.Tensor) else ("isend", type(data).__name__)


def _what(name: str, of: Any = "", shape: torch.Size | None = None) -> str:
    if shape is not None:
        return f"{name} of {str(of).removeprefix('torch.')} {tuple(shape)}"
    if not of:
        return name
    if of == "NoneType":
        return f"{name} of None"
    return f"{name} of a{'n' if of[0].lower() in 'aeiou' else ''} {of}"


def _line(frame: FrameType | None, scope: dict[str, Any]) -> tuple[tuple[str, int] | None, bool]:
    """File and line of the cell that has led to a frame, and whether a debugger is in between."""
    debugged = False
    while frame is not None and (frame.f_globals is not scope or frame.f_code.co_filename in TYPED):
        debugged = debugged or frame.f_globals.get("__name__") == "pdb"
        frame = frame.f_back
    return (frame.f_code.co_filename, frame.f_lineno) if frame is not None else None, debugged


def line_of(at: tuple[str, int] | None, aside: str = "") -> str:
    """A line as it is shown: "line 3: all_reduce(x)"; empty where it is not known."""
    if at is None:
        return ""
    text = shortened(linecache.getline(*at)[: 2 * _LINE].strip(), _LINE)
    return f"line {at[1]}{aside}: {text}" if text else f"line {at[1]}{aside}"


def line_at(frame: FrameType | None, scope: dict[str, Any] | None) -> str:
    """The line of the cell that a thread is in, as it is shown."""
    if scope is None:
        return ""
    at, debugged = _line(frame, scope)
    return line_of(at, DEBUGGED if debugged else "")


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
    return arguments.removeprefix(f"{_HEAD}, ") if name == what.partition(" of ")[0] else words


def name_of(words: str, where: str) -> str:
    """The name of what a rank called."""
    return where.partition("|")[0].partition(" of ")[0] or words.partition("(")[0].partition(" of ")[0]


def of_call(name: str, words: str, said: Said, *, arrives: bool = False) -> tuple[str, str]:
    """A call's name, and what it is called with, as the cell called it; torch's where the cell called torch.

    Args:
        name: torch's.
        words: what torch was called with: "float32 (4,), sum".
        said: what the cell called.
        arrives: it is a receive, which does not know yet of what.

    >>> of_call("all_gather_into_tensor", "uint8 (512,)", Said(b"", "all_gather of a dict"))
    ('all_gather', 'a dict')
    >>> of_call("broadcast", "uint8 (512,), src 0", Said(b"", "broadcast of a dict"))
    ('broadcast', 'a dict, src 0')
    >>> of_call("all_reduce", "float32 (4,), sum", Said(b""))
    ('all_reduce', 'float32 (4,), sum')
    """
    own, _, of = said.what.partition(" of ")
    if not own:
        return name, words
    if arrives:
        return own, ""
    more = _HOW.sub("", words) if name.startswith(own) else ""
    return own, ", ".join(part for part in (of, more) if part)
