"""What a cell itself calls, and in which line. Users know this call, and not the torch call that it leads to."""

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
from ...comm.transport.packets import HEAD_BYTES
from ...short_repr import shortened
from .fingerprints import place

TYPED = ("<stdin>", "<string>")
"""Files of code that has no place in a cell: typed at a debugger's prompt, or run by `eval`."""

_CALL: CodeType = collective(lambda: None).__code__
"""The code of every Communicator's method that a cell calls."""

DEBUGGED = " in the debugger"


_REDUCED = ("all_reduce", "reduce")
"""Methods that pass a tensor to torch unchanged: torch's own words say more."""

_HEAD = f"uint8 ({HEAD_BYTES},)"
"""What is sent first for all data that is not reduced: see `comm.transport.exchange`."""

_OBJECTS = (
    *("all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list"),
    *("recv_object_list", "send_object_list"),
)
"""Torch's own functions for objects: the calls by which they move data mean nothing to users."""

_HOW = re.compile(r"^\w+ \([\d, ]*\)(, )?")
"""The description of a tensor in torch's words, before the words on how it is moved."""

_OURS = "nbcomm.comm.", "nbcomm.fabric."
_TURNS = {"_first": "rank_first", "call": "one_rank_only"}
"""Functions that carry out a method of another name."""

_LINE = 300
"""Characters of a line that are shown with each call in it: a cell may hold all of its data in one line."""

_Cache = dict[tuple[Any, ...], tuple["Said", CodeType, CodeType, CodeType]]

_CACHED = 4096
_cache: _Cache = {}


class Said(NamedTuple):
    """What a cell called.

    Attributes:
        block: all of it, ready for the board.
        what: "all_gather of a dict", "all_gather_object"; empty where the cell's call is torch's own.
        place: file and line of the cell; None where that is not known.
    """

    block: bytes
    what: str = ""
    place: tuple[str, int] | None = None


_NOTHING = Said(place(""))
_carried: dict[int, Said] = {}


def here(scope: dict[str, Any] | None) -> Said:
    """Return the cell's call that led to the caller of the caller.

    Every collective needs this, so repeated calls are answered from a cache: to find a line alone takes microseconds.

    Args:
        scope: the namespace of the cells.
    """
    return _found(sys._getframe(2), scope, _cache)  # noqa: SLF001 - the only way to see who called, at no cost


def of_frame(frame: FrameType | None, scope: dict[str, Any] | None) -> Said:
    """Return the cell's call that a thread is in."""
    return _found(frame, scope, {}) if frame is not None else _NOTHING


def forget() -> None:
    """Release the cells' code, which may hold much data, after a cell."""
    _cache.clear()


@contextmanager
def carrying(said: Said) -> Iterator[None]:
    """Mark the calling thread as carrying out what a cell has begun."""
    ident = threading.get_ident()
    before, _carried[ident] = _carried.get(ident, _NOTHING), said
    try:
        yield
    finally:
        _carried[ident] = before
        if before is _NOTHING:
            del _carried[ident]


def carried(ident: int | None = None) -> Said:
    """Return what a cell has begun that a thread carries out; by default the calling thread."""
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
    kind = _kind(method) if method is not None else None
    key = id(code), frame.f_lasti, id(through), id(by), kind  # a code's own hash takes as long as all the rest here
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
        cache[key] = said, code, through, by  # the codes are kept, or other codes might get their ids
    return said


def _named(called: FrameType, within: FrameType, method: FrameType | None, kind: tuple[Any, ...] | None) -> str:
    """Return what the cell called, by the outermost name that users know."""
    said = _what(*kind) if kind is not None else ""
    if called is method:
        return said
    for frame in (called, within):
        name = frame.f_code.co_name
        if name in _OBJECTS:  # torch may wrap it
            return name
        if frame.f_code is not _CALL and frame.f_globals.get("__name__", "").startswith(_OURS):
            name = _TURNS.get(name, name)
            if name in METHODS:  # of a reduced tensor torch's words say more
                return "" if method is not None and kind is None and method.f_locals["name"] == name else name
    return said


def _kind(frame: FrameType) -> tuple[Any, ...] | None:
    """Return a Communicator's method and what it was called with."""
    found = frame.f_locals
    name, args, kwargs = found["name"], found["args"], found["kwargs"]
    if name in ("barrier", "split_group"):
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


def _line(frame: FrameType | None, scope: dict[str, Any]) -> tuple[tuple[str, int] | None, bool]:
    """Return file and line of the cell that led to a frame, and whether a debugger is in between."""
    debugged = False
    while frame is not None and (frame.f_globals is not scope or frame.f_code.co_filename in TYPED):
        debugged = debugged or frame.f_globals.get("__name__") == "pdb"
        frame = frame.f_back
    return (frame.f_code.co_filename, frame.f_lineno) if frame is not None else None, debugged


def line_of(at: tuple[str, int] | None, aside: str = "") -> str:
    """Return a line as it is shown, "line 3: all_reduce(x)"; empty where it is not known."""
    if at is None:
        return ""
    text = shortened(linecache.getline(*at)[: 2 * _LINE].strip(), _LINE)
    return f"line {at[1]}{aside}: {text}" if text else f"line {at[1]}{aside}"


def line_at(frame: FrameType | None, scope: dict[str, Any] | None) -> str:
    """Return the line of the cell that a thread is in, as it is shown."""
    if scope is None:
        return ""
    at, debugged = _line(frame, scope)
    return line_of(at, DEBUGGED if debugged else "")


def in_words(said: Mapping[int, tuple[str, str]]) -> dict[int, str]:
    """Describe each rank's call as its cell made it: "all_gather of a dict, line 4".

    Args:
        said: for each rank, what torch was called with, and what the cell called (see `here`); "" for what is unknown.

    >>> in_words({0: ("all_gather_into_tensor(uint8 (512,))", "all_gather of a dict|4"), 1: ("barrier()", "|5")})
    {0: 'all_gather of a dict, line 4', 1: 'barrier(), line 5'}
    """
    inside: dict[str, set[str]] = {}
    for words, where in said.values():
        inside.setdefault(where.partition("|")[0], set()).add(words)
    told = {}
    for rank, (words, where) in said.items():
        what, _, line = where.partition("|")
        if what and words and len(inside[what]) > 1:  # otherwise the difference would not show
            what = f"{what} ({_inside(what, words)})"
        told[rank] = (what or words or "something else") + (f", line {line}" if line else "")
    return told


def _inside(what: str, words: str) -> str:
    """Return what torch was called with for a cell's call; only the arguments if both have the same name."""
    name, _, arguments = words.removesuffix(")").partition("(")
    return arguments.removeprefix(f"{_HEAD}, ") if name == what.partition(" of ")[0] else words


def name_of(words: str, where: str) -> str:
    """Return the name of what a rank called."""
    return where.partition("|")[0].partition(" of ")[0] or words.partition("(")[0].partition(" of ")[0]


def of_call(name: str, words: str, said: Said, *, arrives: bool = False) -> tuple[str, str]:
    """Return a call's name and its arguments as the cell gave them; torch's where the cell called torch.

    Args:
        name: torch's.
        words: what torch was called with: "float32 (4,), sum".
        said: what the cell called.
        arrives: it is a receive, whose data is not known yet.

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
