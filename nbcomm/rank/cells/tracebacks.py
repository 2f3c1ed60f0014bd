"""Where the traceback of a refusal ends: at the user's own line, and not at the line of nbcomm that refused."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, TracebackType
from typing import Any

from ...comm import Communicator
from ...errors import CollectiveError

_THEIRS = ("nbcomm", "torch", "contextlib")


def end_at_caller(error: BaseException | None) -> None:
    """Remove the frames of nbcomm and torch from the end of a refusal's traceback; the debugger stops there, too.

    The sentence of such an error says everything: its frames would only separate it from the line to correct. Any other
    error keeps its frames: they may be what is wrong.
    """
    if not isinstance(error, CollectiveError) and not (isinstance(error, TypeError) and _names_arguments(error)):
        return
    last, step = None, error.__traceback__
    while step is not None:
        if not _is_theirs(step):
            last = step
        step = step.tb_next
    if last is not None:
        last.tb_next = None


@contextmanager
def modules_by_file() -> Iterator[None]:
    """Let `inspect` look only once, in the block, which module a file is of.

    For each frame of a cell it would look at all modules four times, and torch has thousands.
    """
    plain, known = inspect.getmodule, dict[tuple[str, str | None], ModuleType | None]()

    def getmodule(thing: Any, filename: str | None = None) -> ModuleType | None:
        file = getattr(getattr(thing, "f_code", thing), "co_filename", None)
        if file is None:
            return plain(thing, filename)
        if (file, filename) not in known:
            known[file, filename] = plain(thing, filename)
        return known[file, filename]

    inspect.getmodule = getmodule  # type: ignore[assignment]  # a thread that calls it meanwhile gets the same
    try:
        yield
    finally:
        inspect.getmodule = plain


_WRONG_CALL = re.compile(r"(\w+)\.(\w+)\(\) ((?:got|missing|takes) .*)")
_UNEXPECTED = re.compile(r"got an unexpected keyword argument '(\w+)'")
_PEERS = {"root", "source", "dest", "destination", "to", "peer", "rank", "src", "dst"}
_DATA = {"tensor", "obj", "object", "value", "input", "x", "tensors"}


def _names_arguments(error: TypeError) -> bool:
    """Complete Python's words on a call of a Communicator's method that does not fit; return whether it is one."""
    found = _WRONG_CALL.fullmatch(str(error))
    if found is None or not _is_ours(found[1], found[2], error.__traceback__):
        return False
    method = getattr(Communicator, found[2])
    name, wrong = found[2], found[3]
    _, *taken = [one.replace(annotation=one.empty) for one in inspect.signature(method).parameters.values()]
    unexpected = _UNEXPECTED.search(wrong)
    near = _meant(unexpected[1], [one.name for one in taken]) if unexpected is not None else ""
    if wrong.startswith("takes"):  # Python counts the Communicator, too
        wrong = "got too many arguments by position"
    asks = f"; did you mean {near}?" if near else "."
    error.args = (f"{name}() {wrong}{asks} It is called as {name}{inspect.Signature(taken)}.",)
    return True


def _is_ours(kind: str, method: str, step: TracebackType | None) -> bool:
    """Return whether what was called is the Communicator's, and nothing of the user's that is named alike."""
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    own = next((one for one in Communicator.__mro__[:-1] if one.__name__ == kind), None)
    return own is not None and method in vars(own) and (step is None or kind not in step.tb_frame.f_globals)


def _meant(keyword: str, taken: list[str]) -> str:
    peers = [name for name in ("src", "dst") if name in taken]
    if keyword in _PEERS and len(peers) == 1:
        return peers[0]
    if keyword in _DATA:
        return taken[0]
    if "op" in keyword and "op" in taken:
        return "op"
    return next(iter(difflib.get_close_matches(keyword, taken, 1)), "")


def _is_theirs(step: TracebackType) -> bool:
    name = step.tb_frame.f_globals.get("__name__")
    return isinstance(name, str) and name.partition(".")[0] in _THEIRS


def reasons(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, those of which it is a group, those in whose handling it was raised, and so on."""
    seen: set[int] = set()
    left = [error]
    while left:
        error = left.pop()
        if error is not None and id(error) not in seen:
            seen.add(id(error))
            yield error
            left += [error.__context__, error.__cause__, *getattr(error, "exceptions", ())]
