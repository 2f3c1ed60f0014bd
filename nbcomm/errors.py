"""Every error that nbcomm raises on purpose, as one tree.

::

    NbcommError
    ├── SteeringError           what was asked in the notebook cannot be done; one sentence
    │   ├── SpecError           a rank SPEC is malformed or out of range  (also ValueError)
    │   ├── StateError          start twice, stop with nothing running, …
    │   ├── CellSyntaxError     a cell cannot be compiled, so no rank has seen it
    │   ├── StartError          the world did not start; carries the engine's log
    │   ├── TransferError       a value cannot travel between notebook and ranks
    │   ├── ScriptError         a script cannot be written, or found
    │   └── RankDiedError       a rank's process has ended by itself
    ├── CellError               a cell failed on at least one rank
    ├── ExitError               a script that a cell ran has ended with an error of its own
    ├── InternalError           nbcomm itself has failed
    └── CollectiveError         a collective was refused on a rank, or ended
        ├── SubsetError         a world collective in a cell that runs on some ranks only
        ├── OpError             an unknown reduction, or one that the dtype does not have  (also ValueError)
        ├── MismatchError       ranks do different things at the same place of a group
        ├── HangError           a wait that could never end was ended
        └── SelfTestError       what torch says of a process group is not true

A message is a full sentence: what happened, on which ranks, and what to do.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable

__all__ = [
    "CellError",
    "CellSyntaxError",
    "CollectiveError",
    "ExitError",
    "HangError",
    "InternalError",
    "MismatchError",
    "NbcommError",
    "OpError",
    "RankDiedError",
    "ScriptError",
    "SelfTestError",
    "SpecError",
    "StartError",
    "StateError",
    "SteeringError",
    "SubsetError",
    "TransferError",
]


class NbcommError(Exception):
    """The root: catch this to catch whatever nbcomm raises on purpose."""

    def reword(self, change: Callable[[str], str]) -> None:
        """Change the text."""
        self.args = tuple(change(argument) if isinstance(argument, str) else argument for argument in self.args)


class SteeringError(NbcommError):
    """What was asked for in the notebook cannot be done; nothing was changed."""

    def _render_traceback_(self) -> list[str]:
        # IPython asks the exception first. A person who mistyped an option is helped by the sentence,
        # not by forty lines of nbcomm's own frames.
        return [f"{type(self).__name__}: {self}"]


class SpecError(SteeringError, ValueError):
    """A rank SPEC is malformed, or names a rank that the world does not have."""


class StateError(SteeringError, RuntimeError):
    """The world is not in the state that the request needs (already running, not running, …)."""


class CellSyntaxError(SteeringError):
    """A cell cannot be compiled. The notebook shows the error once; no rank has seen the cell."""

    def _render_traceback_(self) -> list[str]:
        cause = self.__cause__
        return "".join(traceback.format_exception_only(cause)).splitlines() if cause else [str(self)]


class StartError(SteeringError, RuntimeError):
    """The world did not start. The message ends with the last lines of the failing engine's log."""


class TransferError(SteeringError, TypeError):
    """A value cannot travel between the notebook and the ranks, or a name is not there."""


class ScriptError(SteeringError):
    """A script cannot be written where it should be, or is not there to be run; nothing was changed."""


class RankDiedError(SteeringError, RuntimeError):
    """A rank's process has ended by itself; the message names the rank and the cause."""


class CellError(NbcommError):
    """A cell failed on at least one rank.

    Attributes:
        ranks: the global ranks on which it failed, ascending.
        tracebacks: the coloured traceback of each such rank, as the rank rendered it.

    Args:
        message: which ranks failed, and with what.
        tracebacks: of each rank.
        rendered: what is shown above the sentence.
        summary: the sentence that is shown, if what is rendered has said the rest.
    """

    def __init__(
        self, message: str, tracebacks: dict[int, str], rendered: str | None = None, summary: str | None = None
    ) -> None:
        super().__init__(message)
        self.tracebacks = dict(sorted(tracebacks.items()))
        self.ranks = list(self.tracebacks)
        self._rendered = rendered
        self._summary = summary
        self._suggestion = ""

    def reword(self, change: Callable[[str], str]) -> None:
        """Change the text, what is shown above it, and what is suggested."""
        super().reword(change)
        self._rendered = change(self._rendered) if self._rendered else None
        self._suggestion = change(self._suggestion)

    def suggest(self, what: str) -> None:
        """Show a sentence below, if it is not empty: what to do about it."""
        self._suggestion = what

    def _render_traceback_(self) -> list[str]:
        lines = self._rendered.splitlines() if self._rendered else []
        return [*lines, f"{type(self).__name__}: {self._summary or self}", *filter(None, [self._suggestion])]


class ExitError(NbcommError):
    """A script that ran in a cell has ended itself with an exit status other than 0, or with a message."""

    def _render_traceback_(self) -> list[str]:
        # Where a script says sys.exit is of no interest; what it says is.
        return [f"{type(self).__name__}: {self}"]


class InternalError(NbcommError):
    """A fault of nbcomm's own, told in place of an answer; variables are kept."""


class CollectiveError(NbcommError, RuntimeError):
    """A collective was refused on this rank before any data moved, or was ended."""


class SubsetError(CollectiveError):
    """A collective over the whole world was called in a cell that runs on some ranks only."""


class OpError(CollectiveError, ValueError):
    """An unknown reduction, or one that is not defined for the data's dtype."""


class _EndedError(CollectiveError):
    """What is raised in the middle of a cell for a reason that lies on other ranks."""

    def _render_traceback_(self) -> list[str]:
        # The frames of torch and of nbcomm say nothing about the reason; where the cell was, the sentence says.
        return [f"{type(self).__name__}: {self}"]


class MismatchError(_EndedError):
    """The ranks of a group called different things, or with different shapes, dtypes or ops; no data was used.

    It names every rank that has arrived there, or arrives within a moment, with what its cell called and in which line.
    """


class HangError(_EndedError):
    """This rank waited, or ran a cell in which others waited, for what could never happen."""


class SelfTestError(CollectiveError):
    """What torch says of a process group is not what was asked of it, so no value that passes through it is used."""


class Interrupted(KeyboardInterrupt):
    """The notebook's KeyboardInterrupt once the ranks have ended the cell, shown in a line and at once."""

    def _render_traceback_(self) -> list[str]:
        return [f"KeyboardInterrupt: {self}".rstrip(": ")]


Interrupted.__name__ = "KeyboardInterrupt"  # a front end shows the name, and knows this one
