"""Where the traceback of a refusal ends: at the user's own line, and not at the line of nbcomm that refused."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType

from ...errors import CollectiveError

_THEIRS = ("nbcomm", "torch", "contextlib")


def end_at_caller(error: BaseException | None) -> None:
    """Remove the frames of nbcomm and torch from the end of a refusal's traceback; the debugger stops there, too.

    The sentence of such an error says everything: its frames would only separate it from the line to correct. Any other
    error keeps its frames: they may be what is wrong.
    """
    if not isinstance(error, CollectiveError):
        return
    last, step = None, error.__traceback__
    while step is not None:
        if not _is_theirs(step):
            last = step
        step = step.tb_next
    if last is not None:
        last.tb_next = None


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
