"""The errors that nbcomm raises on purpose, as one tree.

::

    NbcommError
    ├── SteeringError           a request in the notebook cannot be done; one sentence
    │   ├── SpecError           a rank SPEC is malformed or out of range  (also ValueError)
    │   ├── StateError          start twice, stop with nothing running, …
    │   ├── CellSyntaxError     a cell cannot be compiled, so no rank has run anything of it
    │   ├── StartError          the world did not start; carries the engine's log
    │   ├── TransferError       a value cannot travel between notebook and ranks
    │   ├── ScriptError         a script cannot be written, or found
    │   ├── LessonError         there is no such puzzle, or it is broken itself
    │   └── RankDiedError       a rank's process has died
    ├── CellError               a cell failed on at least one rank
    ├── ExitError               a script that a cell ran has exited with an error
    ├── InternalError           nbcomm itself has failed
    └── CollectiveError         a collective was refused or aborted on a rank
        ├── SubsetError         a world collective in a cell that runs on some ranks only
        ├── OpError             an unknown reduction, or one that the dtype does not support  (also ValueError)
        ├── MismatchError       the ranks' calls of a collective do not match
        ├── HangError           a wait that could never end was aborted
        └── SelfTestError       a process group of torch failed its self-test

A message is a full sentence: what happened, on which ranks, and what to do.
"""

from __future__ import annotations

from collections.abc import Callable

from .sentences import wrapped

__all__ = [
    "CellError",
    "CellSyntaxError",
    "CollectiveError",
    "ExitError",
    "HangError",
    "InternalError",
    "LessonError",
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
    """The base class of all errors that nbcomm raises on purpose."""

    def reword(self, change: Callable[[str], str]) -> None:
        """Replace the message by what ``change`` makes of it."""
        self.args = tuple(change(argument) if isinstance(argument, str) else argument for argument in self.args)


class SteeringError(NbcommError):
    """A request in the notebook cannot be done; nothing was changed."""

    def _render_traceback_(self) -> list[str]:
        # IPython calls this in place of its own rendering. The sentence helps a user who mistyped an option; forty
        # lines of nbcomm's frames do not.
        return [wrapped(f"{type(self).__name__}: {self}")]


class SpecError(SteeringError, ValueError):
    """A rank SPEC is malformed, or names a rank that the world does not have."""


class StateError(SteeringError, RuntimeError):
    """The world is not in the state that the request needs (already running, not running, …)."""


class CellSyntaxError(SteeringError):
    """A cell or a script cannot be compiled, so that nothing of it has run. The notebook shows the error once.

    Args:
        message: what is wrong.
        rendered: what is shown, as IPython does it.
    """

    def __init__(self, message: str, rendered: str) -> None:
        super().__init__(message)
        self._rendered = rendered

    def _render_traceback_(self) -> list[str]:
        return self._rendered.splitlines()


class StartError(SteeringError, RuntimeError):
    """The world did not start. The message ends with the last lines of the failing engine's log."""


class TransferError(SteeringError, TypeError):
    """A value cannot be sent between the notebook and the ranks, or a name is not defined."""


class ScriptError(SteeringError):
    """A script cannot be written to its file, or the file to run does not exist; nothing was changed."""


class LessonError(SteeringError):
    """There is no puzzle of this name, or it cannot be read, or its own code raised; a learner's mistake is none."""


class RankDiedError(SteeringError, RuntimeError):
    """A rank's process has died; the message names the rank and the cause."""


class CellError(NbcommError):
    """A cell failed on at least one rank.

    Attributes:
        ranks: the global ranks on which it failed, ascending.
        tracebacks: the coloured traceback of each such rank, as the rank rendered it.

    Args:
        message: which ranks failed, and with what.
        tracebacks: the traceback of each such rank.
        rendered: the text that is shown above the sentence.
        summary: the sentence that is shown, if ``rendered`` says the rest.
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
        """Apply ``change`` to the message, to the text above it, and to the suggestion."""
        super().reword(change)
        self._rendered = change(self._rendered) if self._rendered else None
        self._suggestion = change(self._suggestion)

    def suggest(self, what: str) -> None:
        """Show a remedy below the error, if it is not empty."""
        self._suggestion = what

    def _render_traceback_(self) -> list[str]:
        lines = self._rendered.splitlines() if self._rendered else []
        said = [f"{type(self).__name__}: {self._summary or self}", *filter(None, [self._suggestion])]
        return [*lines, *map(wrapped, said)]


class ExitError(NbcommError):
    """A script that ran in a cell has exited with a status other than 0, or with a message."""

    def _render_traceback_(self) -> list[str]:
        # The message of sys.exit matters, and not where the script calls it.
        return [f"{type(self).__name__}: {self}"]


class InternalError(NbcommError):
    """A fault in nbcomm itself, which a rank reports in place of an answer; variables are kept."""


class CollectiveError(NbcommError, RuntimeError):
    """A collective was refused on this rank before any data moved, or was aborted."""


class SubsetError(CollectiveError):
    """A collective over the whole world was called in a cell that runs on some ranks only."""


class OpError(CollectiveError, ValueError):
    """An unknown reduction, or one that is not defined for the data's dtype."""


class _EndedError(CollectiveError):
    """An error in the middle of a cell that has its cause on other ranks."""

    def _render_traceback_(self) -> list[str]:
        # The frames of torch and of nbcomm do not show the cause; the sentence says where the cell was.
        return [f"{type(self).__name__}: {self}"]


class MismatchError(_EndedError):
    """The ranks of a group made different calls, or with different shapes, dtypes or ops; no data was used.

    It names every rank that has arrived there, or arrives within a moment, with what its cell called and in which line.
    """


class HangError(_EndedError):
    """This rank waited for what could never happen, or ran a cell in which other ranks did."""


class SelfTestError(CollectiveError):
    """A process group of torch failed its self-test, so no value that passes through it is used."""


class Interrupted(KeyboardInterrupt):
    """The notebook's KeyboardInterrupt after the ranks have ended the cell, shown in one line."""

    def _render_traceback_(self) -> list[str]:
        return [f"KeyboardInterrupt: {self}".rstrip(": ")]


Interrupted.__name__ = "KeyboardInterrupt"  # the name that front ends show and recognise


def again(error: BaseException) -> BaseException:
    """Return a copy of the error: one that is raised twice would carry the first one's traceback."""
    return type(error)(*error.args)
