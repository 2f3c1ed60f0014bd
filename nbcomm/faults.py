"""Faults of nbcomm's own: they cost a sentence, never a cell, a thread or the session."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from .protocol import Failure
from .short_repr import clipped, shortened

_REMEMBERED = 100
"""So many kinds of faults are told apart; a log is no place for the same traceback ten times a second."""

_WORDS, _MESSAGE, _TRACEBACK = 300, 100_000, 1_000_000
"""Characters of an error that are told: beside the work, as a cell's message, and as its traceback."""

_LOGGED = 20_000
"""Characters of a traceback that are logged."""


def trace() -> str:
    """The traceback of the exception that is being handled, as it is logged."""
    return clipped(traceback.format_exc(), _LOGGED)


def _print() -> None:
    sys.stderr.write(trace())


class Faults:
    """What has gone wrong beside the work of one process, each kind of it logged once.

    Args:
        log: writes down the exception that is being handled; by default its traceback, to stderr.
    """

    def __init__(self, log: Callable[[], object] = _print) -> None:
        self._log = log
        self._known: set[tuple[str, str]] = set()

    @contextmanager
    def beside(self, what: str, say: Callable[[str], object] = lambda _: None) -> Iterator[None]:
        """Do what only accompanies the work: where it raises, the work goes on.

        Args:
            what: what is not done then, in words: "its picture could not be drawn".
            say: told that, and why, in a sentence.
        """
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, it is not worth the cell
            self.log(what, error)
            with suppress(Exception):  # it is in the log
                say(f"{what}: {described(error)}.")

    def log(self, what: str, error: BaseException) -> None:
        """Write an exception down, in its handler, if it is the first of its kind."""
        kind = what, described(error)
        if kind not in self._known and len(self._known) < _REMEMBERED:
            self._known.add(kind)
            with suppress(Exception):  # the disk is full, say; nobody is left to be told
                self._log()


def described(error: BaseException) -> str:
    """An exception in a few words."""
    return shortened(f"{type(error).__name__}: {error}".rstrip(": ."), _WORDS)


def told(name: str, message: str, text: str) -> Failure:
    """What is told of an exception, however long its message and its traceback are."""
    return Failure(shortened(name, _WORDS), clipped(message, _MESSAGE), clipped(text, _TRACEBACK))


def failure(rank: int, error: BaseException) -> Failure:
    """What a rank answers in place of what it was asked for, when nbcomm itself has failed there."""
    text = (
        f"nbcomm itself failed on rank {rank} ({described(error)}). This is a bug in nbcomm, not in your code, and "
        f"variables are kept. The traceback is in the rank's log (%distributed log {rank}); please report it."
    )
    return Failure("InternalError", text, f"InternalError: {text}")
