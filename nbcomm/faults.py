"""Faults of nbcomm's own: they cost a sentence, never a cell, a thread or the session."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from .messages import Failure

_REMEMBERED = 100
"""So many kinds of faults are told apart; a log is no place for the same traceback ten times a second."""


class Faults:
    """What has gone wrong beside the work of one process, each kind of it logged once.

    Args:
        log: writes down the exception that is being handled; by default its traceback, to stderr.
    """

    def __init__(self, log: Callable[[], object] = traceback.print_exc) -> None:
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
    return f"{type(error).__name__}: {error}".rstrip(": .")


def failure(rank: int, error: BaseException) -> Failure:
    """What a rank answers in place of what it was asked for, when nbcomm itself has failed there."""
    text = (
        f"nbcomm itself failed on rank {rank} ({described(error)}). That is a fault of nbcomm's, not of your code, and "
        f"variables are kept. The traceback is in the rank's log (%distributed log {rank}); please report it."
    )
    return Failure("InternalError", text, f"InternalError: {text}")
