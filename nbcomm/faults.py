"""Faults in nbcomm itself: each costs a sentence, and never a cell, a thread or the session."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress

from .protocol import Failure
from .short_repr import clipped, shortened

_TEXTS = 10
"""How many texts of one kind of fault are logged, each once: it may repeat ten times a second, with a number in it."""

_REMEMBERED = 1000
"""How many kinds are told apart: code has no more of them, but a user's may make classes of errors without end."""

_WORDS, _MESSAGE, _TRACEBACK = 300, 100_000, 1_000_000
"""Longest texts of an error, in characters: in a few words, as a cell's message, and as its traceback."""

_LOGGED = 20_000
"""Characters of a traceback that are logged."""


def trace() -> str:
    """Return the traceback of the exception that is being handled, clipped for a log."""
    return clipped(traceback.format_exc(), _LOGGED)


def _print() -> None:
    sys.stderr.write(trace())


def take_all(*steps: Callable[[], object]) -> None:
    """Take every step, whatever those before it raise; raise that when all are taken."""
    with ExitStack() as stack:
        for step in reversed(steps):
            stack.callback(step)


class Faults:
    """The faults of one process outside its main work; each is logged once.

    A kind of fault is what failed, and the class of the error; one that has many texts does not silence the others.

    Args:
        log: writes the exception that is being handled to a log; by default its traceback to stderr.
    """

    def __init__(self, log: Callable[[], object] = _print) -> None:
        self._log = log
        self._known: dict[tuple[str, type], set[str]] = {}

    def beside(self, what: str, say: Callable[[str], object] = lambda _: None) -> AbstractContextManager[None]:
        """Run a block that is not essential: if it raises, log the error and continue.

        Args:
            what: what failed then, in words: "its picture could not be drawn".
            say: called with a sentence of that and the error.
        """
        return _Beside(self, what, say)

    def caught(self, what: str, error: Exception, say: Callable[[str], object] = lambda _: None) -> None:
        """Do what `beside` does with an error that a block has caught by itself, which costs nothing where none is."""
        self.log(what, error)
        with suppress(Exception):  # it is in the log
            say(f"{what}: {described(error)}.")

    def log(self, what: str, error: BaseException) -> None:
        """Log an exception if it is the first of its kind. Call this in its handler."""
        kind, text = (what, type(error)), described(error)
        if kind not in self._known and len(self._known) == _REMEMBERED:
            return
        texts = self._known.setdefault(kind, set())
        if text not in texts and len(texts) < _TEXTS:
            texts.add(text)
            with suppress(Exception):  # for example, the disk is full
                self._log()


class _Beside(AbstractContextManager[None]):
    """A block that is not essential. No generator: that would take microseconds, and each message is in several."""

    __slots__ = ("_of", "_say", "_what")

    def __init__(self, faults: Faults, what: str, say: Callable[[str], object]) -> None:
        self._of, self._what, self._say = faults, what, say

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if not isinstance(error, Exception):  # none, or one that ends more than the block
            return False
        self._of.caught(self._what, error, self._say)
        return True


def described(error: BaseException) -> str:
    """Describe an exception in a few words; this never raises, as a library's own exception may in telling itself."""
    try:
        return shortened(f"{type(error).__name__}: {error}".rstrip(": ."), _WORDS)
    except Exception:  # noqa: BLE001 - whatever it is
        return type(error).__name__


def told(name: str, message: str, text: str) -> Failure:
    """Return an exception as a `Failure` whose texts are shortened to a fixed length."""
    return Failure(shortened(name, _WORDS), clipped(message, _MESSAGE), clipped(text, _TRACEBACK))


def failure(rank: int, error: BaseException) -> Failure:
    """Return the `Failure` with which a rank answers a request when nbcomm itself has failed there."""
    text = (
        f"nbcomm itself failed on rank {rank} ({described(error)}). This is a bug in nbcomm, not in your code, and "
        f"variables are kept. The traceback is in the rank's log (%distributed log {rank}); please report it."
    )
    return Failure("InternalError", text, f"InternalError: {text}")
